package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// stuckAfter is how long the engine may refuse to freeze, thaw or remove a container before the sandbox is Failed.
// An engine that does not answer at all is waited for.
const stuckAfter = 30 * time.Second

const removedExternally = "the container was removed by somebody else"

// next begins what the record demands, unless work is under way already. It decides from the record alone, so it is also what
// takes a sandbox up after a restart.
func (a *actor) next() {
	if a.job != nil {
		return
	}
	switch state := a.state(); {
	case state == lifecycle.StatePending:
		a.start(a.provision)
	case state == lifecycle.StatePausing:
		a.start(a.freeze)
	case state == lifecycle.StateResuming:
		a.start(a.thaw)
	case state == lifecycle.StateStopping:
		a.start(a.terminate)
	case state.Final() && !a.record.Removed:
		a.start(a.clean)
	case a.look && !state.Final():
		a.look = false
		a.start(a.inspect)
	}
}

// start runs work beside the actor. What the work returns is run by the actor when the work is over.
func (a *actor) start(work func(ctx context.Context, record lifecycle.Record) (outcome func())) {
	ctx, cancel := context.WithCancel(a.host.ctx)
	a.job = cancel
	record := a.record.Clone()
	a.host.tasks.Add(1)
	go func() {
		defer a.host.tasks.Done()
		defer cancel()
		outcome := work(ctx, record)
		a.post(func() {
			a.job = nil
			if outcome != nil {
				outcome()
			}
		})
	}()
}

// abandon ends the work under way, if any. Its outcome is still delivered.
func (a *actor) abandon() {
	if a.job != nil {
		a.job()
	}
}

// fail returns an outcome that ends the sandbox in Failed, unless it is ending already.
func (a *actor) fail(reason lifecycle.Reason, message string) func() {
	return func() {
		if _, ok := lifecycle.Next(a.state(), lifecycle.TriggerFail); ok && a.state() != lifecycle.StateStopping {
			a.settle(lifecycle.TriggerFail, reason, message)
		}
	}
}

// freeze is the work of Pausing.
func (a *actor) freeze(ctx context.Context, record lifecycle.Record) func() {
	return a.act(ctx, record, "pause", a.host.Engine.Freeze, func() {
		a.settle(lifecycle.TriggerPaused, a.record.Sandbox.Status.Reason, "frozen; its memory is retained")
	})
}

// thaw is the work of Resuming.
func (a *actor) thaw(ctx context.Context, record lifecycle.Record) func() {
	return a.act(ctx, record, "resume", a.host.Engine.Thaw, func() {
		a.settle(lifecycle.TriggerResumed, lifecycle.ReasonContainerRunning, "resumed")
	})
}

// act makes the engine do something to the container and returns done, or what failed. A container that is not there to be
// acted on has a story of its own, which inspect finds out.
func (a *actor) act(ctx context.Context, record lifecycle.Record, name string, do func(context.Context, string) error, done func()) func() {
	err := a.insist(ctx, name, func(ctx context.Context) error {
		err := do(ctx, containerName(a.id))
		if missing(err) && a.lives(ctx) {
			// The engine contradicts itself. Taken at its word it would be asked again at once, and for ever.
			return fmt.Errorf("the container lives, yet: %v", err)
		}
		return err
	})
	switch {
	case err == nil:
		return func() {
			if a.state() == record.Sandbox.Status.State {
				done()
			}
		}
	case missing(err):
		return a.inspect(ctx, record)
	case ctx.Err() != nil:
		return nil
	}
	return a.fail(lifecycle.ReasonContainerError, fmt.Sprintf("cannot %s: %v", name, err))
}

// missing reports whether the engine says that there is no living container to act on.
func missing(err error) bool {
	return errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotRunning)
}

func (a *actor) lives(ctx context.Context) bool {
	container, err := a.host.Engine.Inspect(ctx, containerName(a.id))
	return err == nil && (container.Status == engine.StatusRunning || container.Status == engine.StatusFrozen)
}

// insist repeats a call to the engine until it works, the container is not there for it, ctx ends, or the engine keeps refusing.
func (a *actor) insist(ctx context.Context, name string, call func(context.Context) error) error {
	refusedSince := time.Time{}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := call(ctx)
		if err == nil || missing(err) || ctx.Err() != nil {
			return err
		}
		now := a.host.Clock()
		switch {
		case errors.Is(err, engine.ErrUnavailable):
			refusedSince = time.Time{}
		case refusedSince.IsZero():
			refusedSince = now
		case now.Sub(refusedSince) > stuckAfter:
			return err
		}
		a.log.Warn().Err(err).Str("action", name).Dur("retry_in", pause).Msg("the container engine did not do what it was asked to")
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// terminate is the work of Stopping.
func (a *actor) terminate(ctx context.Context, record lifecycle.Record) func() {
	if a.launched {
		if err := a.host.Engine.Stop(ctx, containerName(a.id), stopGrace); err != nil && ctx.Err() == nil {
			a.log.Warn().Err(err).Msg("the entrypoint was not asked to end; it is killed")
		}
	}
	err := a.remove(ctx, record)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return func() {
			a.settle(lifecycle.TriggerFail, lifecycle.ReasonContainerError, fmt.Sprintf("cannot remove the container: %v", err))
		}
	}
	return func() {
		a.record.Removed = true
		status := a.record.Sandbox.Status
		a.settle(lifecycle.TriggerTerminated, status.Reason, status.Message)
	}
}

// remove keeps the end of the log and removes what the engine has of the sandbox.
func (a *actor) remove(ctx context.Context, record lifecycle.Record) error {
	if !a.launched {
		return nil
	}
	a.keepLog(ctx)
	if err := a.insist(ctx, "remove", func(ctx context.Context) error { return a.host.Engine.Remove(ctx, containerName(a.id)) }); err != nil {
		return err
	}
	return a.dropSidecar(ctx, record)
}

// clean removes what a sandbox that has Failed left at the engine.
func (a *actor) clean(ctx context.Context, record lifecycle.Record) func() {
	if err := a.remove(ctx, record); err != nil {
		a.log.Error().Err(err).Msg("the container of a failed sandbox cannot be removed; trying again")
		return nil
	}
	return func() {
		record := a.record
		record.Removed = true
		a.adopt(record)
	}
}

// inspect finds out what has become of the container, after something may have happened to it behind our back.
func (a *actor) inspect(ctx context.Context, record lifecycle.Record) func() {
	select {
	case a.host.looks <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	container, err := a.found(ctx, &record)
	<-a.host.looks
	cutOff := (*provisionError)(nil)
	switch {
	case errors.As(err, &cutOff):
		return a.fail(cutOff.reason, cutOff.text)
	case errors.Is(err, engine.ErrNotFound), err == nil && container.Status == engine.StatusRemoving:
		return a.fail(lifecycle.ReasonRemovedExternally, removedExternally)
	case ctx.Err() != nil:
		return nil
	case err != nil:
		// When the engine comes back everybody is told to look again, and by every sweep.
		a.log.Warn().Err(err).Msg("the container cannot be inspected")
		return nil
	case container.Status == engine.StatusExited, container.Status == engine.StatusCreated:
		return a.ended(container, a.lastLines(ctx))
	}
	if err := a.meet(ctx, &record, container); err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("the egress sidecar cannot be asked")
	}
	return func() { a.observe(container) }
}

// observe brings the record in line with a container that lives. It takes what was done to the container as done: to freeze or thaw it
// again would undo what somebody did meanwhile.
func (a *actor) observe(container engine.Container) {
	if port := portOf(container); port != 0 && port != a.record.Port {
		record := a.record
		record.Port = port
		a.adopt(record)
	}
	switch state := a.state(); {
	case state == lifecycle.StateRunning && container.Status == engine.StatusFrozen:
		a.settle(lifecycle.TriggerPause, lifecycle.ReasonExternalPause, "somebody else froze the container")
		a.settle(lifecycle.TriggerPaused, lifecycle.ReasonExternalPause, "somebody else froze the container; its memory is retained")
	case state == lifecycle.StatePaused && container.Status == engine.StatusRunning:
		a.settle(lifecycle.TriggerResume, lifecycle.ReasonExternalResume, "somebody else thawed the container")
		a.settle(lifecycle.TriggerResumed, lifecycle.ReasonContainerRunning, "somebody else thawed the container")
	}
}

// ended returns the outcome for a container that has ended by itself: exit code 0 is Terminated, anything else Failed.
func (a *actor) ended(container engine.Container, log string) func() {
	switch {
	case container.OOMKilled && container.ExitCode != 0: // an engine also tells when only one of its processes was killed
		return a.fail(lifecycle.ReasonOOMKilled, "the kernel killed it for using more memory than its limit"+log)
	case container.Status == engine.StatusCreated:
		return a.fail(lifecycle.ReasonContainerError, "the container did not start: "+container.Error)
	case container.ExitCode != 0:
		return a.fail(lifecycle.ReasonEntrypointExited, fmt.Sprintf("the entrypoint ended with exit code %d%s", container.ExitCode, log))
	}
	return func() {
		if _, ok := lifecycle.Next(a.state(), lifecycle.TriggerExit); ok {
			a.settle(lifecycle.TriggerExit, lifecycle.ReasonEntrypointExited, "the entrypoint ended with exit code 0")
		}
	}
}

// logFollows ends the first line of a message that what the sandbox wrote follows in.
const logFollows = "; the last lines of its log:"

// lastLines returns the end of the sandbox's log in the form in which messages carry it, empty when there is none.
func (a *actor) lastLines(ctx context.Context) string {
	return a.lastLinesOf(ctx, containerName(a.id))
}

func (a *actor) lastLinesOf(ctx context.Context, container string) string {
	text, err := a.host.Engine.Logs(ctx, container, 20)
	if err != nil || text == "" {
		return ""
	}
	return logFollows + "\n" + text
}

// sleep waits and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
