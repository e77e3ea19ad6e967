package host

import (
	"context"
	"slices"
	"time"

	"sandbox.internal/server/lifecycle"
)

// spawn starts the actor of a record and makes the sandbox visible. A record that is not new may
// have a box.
func (h *Host) spawn(record lifecycle.Record, auth *lifecycle.ImageAuth, isNew bool) *actor {
	if record.Box == "" { // written by a version in which a box had no identity of its own
		record.Box = record.Sandbox.ID
	}
	if record.Removed { // a version before kept its spec
		record.Spec = lifecycle.Spec{}
	}
	record.Spec = withoutCopies(record.Spec) // a version before kept them
	a := &actor{
		host:      h,
		id:        record.Sandbox.ID,
		createdAt: record.Sandbox.CreatedAt,
		log:       h.options.Logger.With().Str("sandbox_id", record.Sandbox.ID).Logger(),
		record:    record,
		auth:      auth,
		launched:  !isNew,
		inbox:     make(chan func(), 16),
		gone:      make(chan struct{}),
		changed:   make(chan struct{}),
		sleep:     sleep{reports: make(chan struct{}, 1)},
	}
	if record.Sandbox.Status.State == lifecycle.StatePausing && record.Sandbox.Status.Reason == lifecycle.ReasonIdle {
		// What came to the sandbox between the decision and the freeze was reported to a service
		// that has ended.
		a.sleep.woken = true
	}
	a.publish()
	h.registry.add(a)
	h.tasks.Add(1)
	go a.run()
	return a
}

// run is the actor's goroutine. After each message, and when a time has come, it does what is due
// and starts the job that the record requires.
func (a *actor) run() {
	defer a.host.tasks.Done()
	defer close(a.gone)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if a.due() {
			return
		}
		a.retrySave()
		a.updateSleep()
		a.updateHibernation()
		a.next()
		timer.Reset(a.idle())
		select {
		case f := <-a.inbox:
			f()
		case <-timer.C:
		case <-a.sleep.reports:
		case <-a.host.ctx.Done():
			a.cancelJob()
			return
		}
	}
}

// next starts the job that the state in the record requires, unless one runs already, so it also
// continues a sandbox after a restart. In a state that requires none it inspects the box if
// something may have happened to it.
func (a *actor) next() {
	if a.cancelRunning != nil {
		return
	}
	auth, launched := a.auth, a.launched // a job gets copies of what belongs to this goroutine
	switch state := a.state(); {
	case state == lifecycle.StatePending:
		a.start(func(ctx context.Context, record lifecycle.Record) func() {
			return a.provision(ctx, record, auth, launched)
		})
	case a.record.Hibernation == lifecycle.HibernationBegun && (state == lifecycle.StatePaused || state == lifecycle.StateResuming):
		a.start(func(ctx context.Context, record lifecycle.Record) func() {
			return a.hibernate(ctx, record, func() {})
		})
	case state == lifecycle.StatePausing && a.record.Stopped:
		a.start(a.suspend)
	case state == lifecycle.StatePausing && a.needsPacketWatch():
		a.start(a.freezeWatched)
	case state == lifecycle.StatePausing:
		a.start(a.freeze)
	case state == lifecycle.StateResuming:
		a.start(a.thaw)
	case state == lifecycle.StateStopping:
		a.start(func(ctx context.Context, record lifecycle.Record) func() {
			return a.terminate(ctx, record, launched)
		})
	case state.Final() && !a.record.Removed:
		a.start(func(ctx context.Context, record lifecycle.Record) func() {
			return a.clean(ctx, record, launched)
		})
	case a.needsInspect && !state.Final():
		a.needsInspect = false
		a.start(a.inspect)
	case state == lifecycle.StatePaused && a.needsPacketWatch():
		a.start(a.watchPacketsAgain)
	case state == lifecycle.StatePaused && a.needsPorts():
		a.start(a.holdPorts)
	case a.untilHibernation() == 0:
		a.queueForDisk()
	}
}

// start runs a job beside the actor. The actor runs the job's outcome when the job has ended.
func (a *actor) start(job func(ctx context.Context, record lifecycle.Record) (outcome func())) {
	ctx, cancel := context.WithCancel(a.host.ctx)
	a.cancelRunning = cancel
	record := a.record.Clone()
	a.host.tasks.Add(1)
	go func() {
		defer a.host.tasks.Done()
		defer cancel()
		outcome := job(ctx, record)
		a.post(func() {
			a.cancelRunning = nil
			if outcome != nil {
				outcome()
			}
		})
	}()
}

// cancelJob cancels the running job, if any. Its outcome is still delivered.
func (a *actor) cancelJob() {
	if a.cancelRunning != nil {
		a.cancelRunning()
	}
}

// dueAt returns when the sandbox expires or is to be woken, or its record is forgotten; zero when
// only the running job changes something.
func dueAt(record *lifecycle.Record) time.Time {
	switch state := record.Sandbox.Status.State; {
	case state.Final() && record.Removed:
		return record.RetainUntil
	case state.Final() || state == lifecycle.StateStopping:
		return time.Time{}
	case pausesAtTimeout(record) && (state == lifecycle.StatePausing || state == lifecycle.StateResuming):
		return time.Time{} // it is looked at again once it is Paused or Running
	case wakesByItself(record) && record.WakeAt.Before(record.Sandbox.ExpiresAt):
		return record.WakeAt
	}
	return record.Sandbox.ExpiresAt
}

// untilDue returns the time until then.
func (a *actor) untilDue() time.Duration {
	at := dueAt(&a.record)
	if a.sleep.woken && wakesByItself(&a.record) { // the job that wakes it may take long, or wait for another
		at = a.record.Sandbox.ExpiresAt
	}
	if at.IsZero() {
		return time.Hour
	}
	if at.Before(a.sleep.again) {
		at = a.sleep.again
	}
	return max(0, at.Sub(a.host.options.Clock()))
}

// wall returns a time without the reading of the monotonic clock, which a step of the clock or a
// suspended machine does not move: an expiry is an absolute time.
func wall(at time.Time) time.Time { return at.Round(0) }

// idle returns how long the actor may wait for messages before it has something to do.
func (a *actor) idle() time.Duration {
	wait := min(a.untilDue(), a.untilHibernation())
	if a.state() == lifecycle.StatePaused && a.cancelRunning == nil {
		wait = min(wait, a.untilWake(), a.untilPorts())
	}
	if a.saveAgainAt.IsZero() {
		return wait
	}
	return max(0, min(wait, a.saveAgainAt.Sub(a.host.options.Clock())))
}

// due expires the sandbox or wakes it, or forgets its record, when its time has come. It returns
// true when the record is forgotten.
func (a *actor) due() bool {
	if a.untilDue() > 0 {
		return false
	}
	if a.state().Final() {
		events := slices.Concat(a.unsaved, []lifecycle.Event{a.event(lifecycle.EventForgotten)})
		if err := a.host.options.Store.Forget(a.host.ctx, a.id, events...); err != nil {
			a.log.Error().
				Err(err).
				Msg("cannot remove the record of an ended sandbox; retrying")
			a.record.RetainUntil = wall(a.host.options.Clock().Add(time.Minute))
			return false
		}
		a.host.registry.remove(a)
		a.host.ended.Remove(a)
		a.host.notifier.notify(events)
		return true
	}
	switch now := a.host.options.Clock(); {
	case wakesByItself(&a.record) && now.Before(a.record.Sandbox.ExpiresAt):
		a.sleep.woken = true
		return false
	case pausesAtTimeout(&a.record):
		a.timeOut()
		return false
	}
	a.recordTransition(lifecycle.TriggerExpire, lifecycle.ReasonExpired, "its time is up")
	a.host.options.Observer.Expired(a.host.options.Clock().Sub(a.record.Sandbox.ExpiresAt))
	a.cancelJob()
	return false
}
