package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// stopped returns the outcome for a box whose processes are gone and whose files are kept, as after
// a reboot of the engine's host: the sandbox is Paused, and nothing is started by itself. Where the
// record that the box was inspected with says so already, there is no outcome: a resume may have
// come since.
func (a *actor) stopped(record lifecycle.Record) func() {
	state := record.Sandbox.Status.State
	if record.Stopped && (state == lifecycle.StatePaused || state == lifecycle.StatePausing) {
		return nil
	}
	return func() { a.stop(lifecycle.ReasonHostRebooted, lifecycle.HostRebooted) }
}

// stop records that a box can only be started again, and why.
func (a *actor) stop(reason lifecycle.Reason, message string) {
	state, known := a.state(), a.record.Stopped
	if state.Final() || state == lifecycle.StateStopping || state == lifecycle.StatePending ||
		known && state == lifecycle.StatePaused {
		return
	}
	a.record = withoutPlace(a.record)
	a.record.Stopped = true
	if state != lifecycle.StatePaused {
		a.recordTransition(lifecycle.TriggerStopped, reason, message)
		return
	}
	record := a.record
	record.Sandbox.Status.Reason, record.Sandbox.Status.Message = reason, message
	event := a.event(lifecycle.EventProgress)
	event.Reason, event.Message = reason, message
	a.log.Info().Str("reason", string(reason)).Msg(message)
	a.saveOrRetry(synced, record, event)
}

// restart is the job of Resuming for a box that is stopped. While the engine does not answer, or
// has no room, it waits, but not for ever. What keeps the box from being started leaves the sandbox
// Paused, with its files.
func (a *actor) restart(ctx context.Context, record lifecycle.Record) func() {
	doing := func(message string) {
		a.post(func() {
			if a.state() == lifecycle.StateResuming {
				a.progress(a.record.Sandbox.Status.Reason, message)
			}
		})
	}
	launch := lifecycle.Launch{
		Ready:   func(place lifecycle.Place) error { return a.syncSidecar(ctx, &record, place) },
		Reached: func(lifecycle.Stage) {}, // they are those of the first launch
		Doing:   doing,
		Waiting: func(_ lifecycle.Reason, message string) { doing(message) },
	}
	began := a.host.options.Clock()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		place, err := a.host.options.Boxes.Restart(ctx, record, launch)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			return func() { a.restarted(place) }
		case missing(err):
			return a.inspect(ctx, record)
		case !errors.Is(err, lifecycle.ErrBoxUnavailable),
			a.host.options.Clock().Sub(began) > stuckAfter:
			return func() { a.notRestarted(resumeFailed(err)) }
		}
		a.log.Warn().
			Err(err).
			Dur("retry_in", pause).
			Msg("resume waits for the container engine")
		doing("waiting for the container engine: " + err.Error())
		if !clock.Sleep(ctx, pause) {
			return nil
		}
	}
}

// notRestarted records that the sandbox could not be started again. One that was woken from the
// disk sleeps there again: the cause may pass, and the next request tries again.
func (a *actor) notRestarted(message string) {
	if a.record.Sandbox.Status.Reason == lifecycle.ReasonWoken {
		a.sleep.wakeAgain = a.host.options.Clock().Add(failedWakePause)
		if a.sleep.ports != nil { // which report the connections of this service, too
			a.sleep.ports.seen.Store(false)
		}
		if a.sleepAgain(message) {
			a.failedWakes.Add(1)
			a.nudge()
			return
		}
	}
	a.stop(lifecycle.ReasonResumeFailed, message)
}

func (a *actor) restarted(place lifecycle.Place) {
	if a.state() != lifecycle.StateResuming {
		return
	}
	reason, message := resumedFrom(a.record.Hibernation, place)
	record, err := a.afterTransition(lifecycle.TriggerResumed, lifecycle.Status{Reason: reason, Message: message})
	if err != nil {
		return // Resuming has it
	}
	record.Port, record.Stopped = place.Port, false
	a.saveOrRetry(a.durabilityOf(lifecycle.TriggerResumed, record), record, a.eventsTo(record)...)
}

// resumeFailed is the message about a box that could not be started again.
func resumeFailed(err error) string {
	const cannot = "cannot start the sandbox again, its files are kept: "
	var failure *lifecycle.BoxFailure
	if !errors.As(err, &failure) {
		return cannot + err.Error()
	}
	if exit := failure.Exit; exit != nil {
		return cannot + fmt.Sprintf("the entrypoint ended with exit code %d%s", exit.Code,
			lifecycle.LogAfterMessage(exit.Log))
	}
	return cannot + failure.Message
}
