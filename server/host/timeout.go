package host

import (
	"cmp"

	"sandbox.internal/server/lifecycle"
)

// pausesAtTimeout reports whether the sandbox is paused when its time is up.
func pausesAtTimeout(record *lifecycle.Record) bool {
	return record.Sandbox.Settings().OnTimeout == lifecycle.OnTimeoutPause && !record.TimedOut &&
		record.Sandbox.Status.State != lifecycle.StatePending
}

// timeOut pauses the sandbox because its time is up; one that is Paused already stays so. It ends
// when it has not been resumed until the longest time to live is over.
func (a *actor) timeOut() {
	record, now := a.record, a.host.options.Clock()
	if a.state() == lifecycle.StateRunning {
		var err error
		if record, err = a.afterTransition(lifecycle.TriggerPause, lifecycle.Status{
			Reason: lifecycle.ReasonTimeout, Message: "asleep: the time of the sandbox is up",
		}); err != nil {
			return // the table has it
		}
	}
	record.TimedOut = true
	record.Sandbox.ExpiresAt = wall(now.UTC().Add(cmp.Or(record.MaxTimeout, lifecycle.MaxTimeout)))
	if err := a.commit(synced, record, a.eventsTo(record)...); err != nil {
		a.log.Error().Err(err).Msg("cannot save that the time of a sandbox is up; retrying")
		a.sleep.again = now.Add(saveInterval)
	}
}
