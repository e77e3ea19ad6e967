package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// stuckAfter is how long the engine may fail to freeze, thaw or remove a box before the sandbox is
// Failed. While the engine does not answer at all, the time does not count.
const stuckAfter = 30 * time.Second

// fail returns an outcome that ends the sandbox in Failed, unless it is ending already.
func (a *actor) fail(reason lifecycle.Reason, message string) func() {
	return a.end(lifecycle.TriggerFail, lifecycle.Status{Reason: reason, Message: message})
}

// end returns the outcome for a sandbox that is over; one that is being stopped stays so.
func (a *actor) end(trigger lifecycle.Trigger, status lifecycle.Status) func() {
	return func() {
		if _, ok := lifecycle.Next(a.state(), trigger); ok &&
			(trigger == lifecycle.TriggerExit || a.state() != lifecycle.StateStopping) {
			a.recordStatus(trigger, status)
		}
	}
}

// freeze is the job of Pausing.
func (a *actor) freeze(ctx context.Context, record lifecycle.Record) func() {
	paused := func() {
		a.recordTransition(lifecycle.TriggerPaused, a.record.Sandbox.Status.Reason,
			"frozen; its memory is retained")
	}
	if !record.Sandbox.Sleeps() {
		return a.act(ctx, record, "pause", a.host.options.Boxes.Freeze, paused)
	}
	// A sandbox that nothing but its idleness or its time pauses runs on where that cannot be.
	err := a.retry(ctx, "pause", func(ctx context.Context) error { return a.host.options.Boxes.Freeze(ctx, record) })
	switch {
	case missing(err):
		return a.inspect(ctx, record)
	case ctx.Err() != nil:
		return nil
	case err != nil:
		a.log.Error().Err(err).Msg("cannot freeze a sandbox that is to sleep, which is woken")
	}
	return func() {
		if a.state() == lifecycle.StatePausing {
			a.sleep.woken = a.sleep.woken || err != nil
			paused()
		}
	}
}

// thaw is the job of Resuming.
func (a *actor) thaw(ctx context.Context, record lifecycle.Record) func() {
	switch {
	case record.Rollback != "":
		return a.rollback(ctx, record)
	case record.Stopped:
		return a.restart(ctx, record)
	}
	return a.act(ctx, record, "resume", a.host.options.Boxes.Thaw, func() {
		a.recordTransition(lifecycle.TriggerResumed, lifecycle.ReasonContainerRunning, "resumed")
	})
}

// act calls do and returns done as the outcome, or the failure. When there is no living box,
// inspect finds out why.
func (a *actor) act(
	ctx context.Context, record lifecycle.Record, name string,
	do func(context.Context, lifecycle.Record) error, done func(),
) func() {
	err := a.retry(ctx, name, func(ctx context.Context) error { return do(ctx, record) })
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

// missing reports whether there is no living box to act on.
func missing(err error) bool {
	return errors.Is(err, lifecycle.ErrNoBox) || errors.Is(err, lifecycle.ErrBoxNotAlive)
}

// retry repeats a call until it succeeds, there is no living box, ctx ends, or the engine has
// failed for too long.
func (a *actor) retry(ctx context.Context, name string, call func(context.Context) error) error {
	refusedSince := time.Time{}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := call(ctx)
		if err == nil || missing(err) || ctx.Err() != nil {
			return err
		}
		now := a.host.options.Clock()
		switch {
		case errors.Is(err, lifecycle.ErrBoxUnavailable):
			refusedSince = time.Time{}
		case refusedSince.IsZero():
			refusedSince = now
		case now.Sub(refusedSince) > stuckAfter:
			return err
		}
		a.log.Warn().
			Err(err).
			Str("action", name).
			Dur("retry_in", pause).
			Msg("a call of the container engine failed")
		if !clock.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// terminate is the job of Stopping.
func (a *actor) terminate(ctx context.Context, record lifecycle.Record, launched bool) func() {
	if launched {
		if err := a.host.options.Boxes.Stop(ctx, record); err != nil && ctx.Err() == nil {
			a.log.Warn().Err(err).Msg("cannot stop the entrypoint; killing it")
		}
	}
	err := a.remove(ctx, record, launched)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return func() {
			a.recordTransition(lifecycle.TriggerFail, lifecycle.ReasonContainerError,
				fmt.Sprintf("cannot remove the container: %v", err))
		}
	}
	return func() {
		a.record = removed(a.record)
		status := a.record.Sandbox.Status
		a.recordStatus(lifecycle.TriggerTerminated, status)
	}
}

// remove keeps the end of the log and removes the box.
func (a *actor) remove(ctx context.Context, record lifecycle.Record, launched bool) error {
	if !launched && !record.SpareNetwork {
		return nil
	}
	a.keepLog(ctx, record)
	return a.retry(ctx, "remove",
		func(ctx context.Context) error { return a.host.options.Boxes.Remove(ctx, record) })
}

// clean removes the box of a sandbox that has Failed.
func (a *actor) clean(ctx context.Context, record lifecycle.Record, launched bool) func() {
	if err := a.remove(ctx, record, launched); err != nil {
		a.log.Error().
			Err(err).
			Msg("cannot remove the container of a failed sandbox; retrying")
		return nil
	}
	return func() { a.saveOrRetry(synced, removed(a.record)) }
}

// removed returns the record of a sandbox whose box is removed. Its spec, which may have a MiB, is
// dropped: it serves to make the box, and no answer has it.
func removed(record lifecycle.Record) lifecycle.Record {
	record.Removed, record.Spec = true, lifecycle.Spec{}
	return record
}

// inspect reads the condition of the box after another process may have acted on it.
func (a *actor) inspect(ctx context.Context, record lifecycle.Record) func() {
	taking := a.taking.Load()
	box, err := a.host.options.Boxes.Inspect(ctx, record)
	failure := (*lifecycle.BoxFailure)(nil)
	switch {
	case errors.As(err, &failure):
		return a.broken(ctx, err)
	case errors.Is(err, lifecycle.ErrNoBox):
		return a.fail(lifecycle.ReasonRemovedExternally, lifecycle.RemovedExternally)
	case ctx.Err() != nil:
		return nil
	case err != nil:
		// Every actor inspects again when the engine comes back, and at every sweep that finds a
		// difference.
		a.log.Warn().Err(err).Msg("cannot inspect the container")
		return nil
	case box.Exit != nil:
		return a.ended(*box.Exit)
	case box.Status == lifecycle.BoxStopped:
		return a.stopped(record)
	}
	if err := a.syncSidecar(ctx, &record, box.Place); err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("the egress sidecar does not answer")
	}
	return func() {
		if now := a.taking.Load(); now == taking && now%2 == 0 {
			a.observe(box)
			return
		}
		// Whether the box is frozen says nothing: a snapshot freezes it.
		if a.skippedInspect = true; a.taking.Load()%2 == 0 {
			a.inspectSkipped()
		}
	}
}

// observe updates the record from a living box. A freeze or thaw by another process is recorded and
// not undone.
func (a *actor) observe(box lifecycle.BoxCondition) {
	if a.state() == lifecycle.StateResuming && a.record.Stopped {
		return // what was observed is about to end, or has
	}
	if port := box.Place.Port; port != 0 && port != a.record.Port {
		record := a.record
		record.Port = port
		a.saveOrRetry(synced, record)
	}
	switch state := a.state(); {
	case state == lifecycle.StateRunning && box.Status == lifecycle.BoxFrozen:
		a.recordTransition(lifecycle.TriggerPause, lifecycle.ReasonExternalPause,
			"another process froze the container")
		a.recordTransition(lifecycle.TriggerPaused, lifecycle.ReasonExternalPause,
			"another process froze the container; its memory is retained")
	case state == lifecycle.StatePaused && box.Status == lifecycle.BoxRunning:
		a.recordTransition(lifecycle.TriggerResume, lifecycle.ReasonExternalResume,
			"another process thawed the container")
		a.recordTransition(lifecycle.TriggerResumed, lifecycle.ReasonContainerRunning,
			"another process thawed the container")
	}
}

// broken returns the outcome for a box that cannot be used: the sandbox has ended, or failed. It is
// nil when the job was cancelled.
func (a *actor) broken(ctx context.Context, err error) func() {
	var failure *lifecycle.BoxFailure
	switch {
	case ctx.Err() != nil:
		return nil
	case !errors.As(err, &failure):
		return a.fail(lifecycle.ReasonContainerError, err.Error())
	case failure.Exit != nil:
		return a.ended(*failure.Exit)
	}
	return a.fail(failure.Reason, failure.Message)
}

// ended returns the outcome for an entrypoint that has exited: exit code 0 is Terminated, anything
// else Failed.
func (a *actor) ended(exit lifecycle.BoxExit) func() {
	log := lifecycle.LogAfterMessage(exit.Log)
	switch {
	case exit.OOMKilled && exit.Code != 0:
		// it is also set when only another process of the sandbox was killed
		return a.fail(lifecycle.ReasonOOMKilled,
			"the kernel killed it for using more memory than its limit"+log)
	case exit.NeverStarted:
		return a.fail(lifecycle.ReasonContainerError,
			"the container did not start: "+exit.StartError)
	}
	trigger := lifecycle.TriggerExit
	status := lifecycle.Status{
		Reason:   lifecycle.ReasonEntrypointExited,
		Message:  fmt.Sprintf("the entrypoint ended with exit code %d", exit.Code),
		ExitCode: &exit.Code,
	}
	if exit.Code != 0 {
		trigger = lifecycle.TriggerFail
		status.Message += log
	}
	return a.end(trigger, status)
}
