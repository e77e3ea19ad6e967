package host

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"sandbox.internal/server/lifecycle"
)

// The pauses before a sandbox that could not be brought to the disk is tried again.
const (
	firstHibernatePause   = 30 * time.Second
	longestHibernatePause = 30 * time.Minute
)

// The messages about a sandbox that is on the disk.
const (
	hibernated      = "asleep on the disk: its processes were written there and take no memory; the next request has them go on"
	hibernatedFiles = "asleep on the disk: its processes have ended, its files are kept; the next request starts its entrypoint again"
	pausedOnDisk    = "paused by a client; its processes were written to the disk, and go on when it is resumed"
	pausedWithFiles = "paused by a client; its files are kept and its processes have ended: resume starts its entrypoint again"
)

// hibernatesAt returns when a sandbox that sleeps is to be brought to the disk; zero when it is
// not, or is there.
func hibernatesAt(record *lifecycle.Record) time.Time {
	settings, status := record.Sandbox.Settings(), record.Sandbox.Status
	if settings.OnIdle != lifecycle.OnIdleHibernate || record.Stopped || record.Hibernation != "" ||
		status.State != lifecycle.StatePaused || status.Reason != lifecycle.ReasonIdle {
		return time.Time{}
	}
	return status.LastTransitionAt.Add(settings.Hibernate)
}

// untilHibernation returns how long the actor may wait until it brings the sandbox to the disk, an
// hour at most.
func (a *actor) untilHibernation() time.Duration {
	if a.cancelRunning != nil {
		return time.Hour
	}
	return a.untilDisk()
}

// untilDisk is untilHibernation whether or not a job runs.
func (a *actor) untilDisk() time.Duration {
	at := hibernatesAt(&a.record)
	if at.IsZero() || a.sleep.woken {
		return time.Hour
	}
	if a.sleep.hibernateNow {
		at = time.Time{}
	}
	if at.Before(a.sleep.hibernateAgain) {
		at = a.sleep.hibernateAgain
	}
	return max(0, at.Sub(a.host.options.Clock()))
}

// updateHibernation stops bringing the sandbox to the disk where that is to run, was paused by a
// client or ends, unless its processes may be ending.
func (a *actor) updateHibernation() {
	state, sleeps := a.state(), a.record.Sandbox.Sleeps()
	if !sleeps {
		a.sleep.hibernateNow = false
	}
	stays := state == lifecycle.StatePaused && (a.sleep.woken || !sleeps) || state == lifecycle.StateResuming
	switch {
	case a.sleep.queued:
		if stays || a.needsInspect || a.untilDisk() > 0 {
			a.cancelJob()
		}
	case stays && a.record.Hibernation == lifecycle.HibernationBegun && a.host.keepsProcesses(&a.record):
		a.cancelJob()
	}
}

// hibernateLater has the sandbox brought to the disk after a pause. Those that have failed together
// are not tried again together.
func (a *actor) hibernateLater(cause error) {
	pause := max(firstHibernatePause, min(2*a.sleep.hibernatePause, longestHibernatePause))
	a.sleep.hibernatePause, a.sleep.hibernateNow = pause, false
	pause -= rand.N(pause / 4)
	a.sleep.hibernateAgain = a.host.options.Clock().Add(pause)
	a.log.Warn().Err(cause).Dur("retry_in", pause).Msg("cannot bring a sandbox that sleeps to the disk, which stays in memory")
}

// queueForDisk starts the job that brings the sandbox to the disk.
func (a *actor) queueForDisk() {
	a.sleep.queued = true
	a.start(func(ctx context.Context, record lifecycle.Record) func() {
		outcome := a.hibernateInTurn(ctx, record)
		return func() {
			a.sleep.queued = false
			if outcome != nil {
				outcome()
			}
		}
	})
}

// hibernateInTurn is the job of a sandbox whose time has come to go to the disk. One at a time does
// on the host, because all of its memory is written. Until its turn the sandbox sleeps in memory as
// before.
func (a *actor) hibernateInTurn(ctx context.Context, record lifecycle.Record) func() {
	if !a.awaitSnapshots(ctx) {
		return nil
	}
	leave, err := a.host.toDisk.enter(ctx, record.Sandbox.Owner)
	if err != nil {
		return nil
	}
	defer leave()
	// No connection is refused while the processes end.
	held, begun := a.holdConnections(ctx, record), false
	err = a.do(a.host.ctx, func() (err error) {
		record, begun, err = a.beginHibernation(held)
		return err
	})
	if held != nil && !begun {
		held.stop()
	}
	if err != nil || !begun {
		return nil
	}
	return a.hibernate(ctx, record, leave)
}

// beginHibernation records that the sandbox goes to the disk, unless it has been woken meanwhile or
// is to go later. Connections to its published ports are held until it runs again.
func (a *actor) beginHibernation(held *packetWatch) (record lifecycle.Record, begun bool, err error) {
	if packets := a.sleep.packets; packets != nil && packets.seen.Load() || held != nil && held.seen.Load() {
		a.sleep.woken = true
	}
	if a.untilDisk() > 0 {
		return record, false, nil
	}
	record = a.record
	record.Hibernation = lifecycle.HibernationBegun
	// A service that is started meanwhile has to know why the processes have ended.
	if err := a.commit(synced, record); err != nil {
		a.hibernateLater(err)
		return record, false, err
	}
	a.sleep.queued, a.sleep.hibernateNow = false, false
	a.setPorts(held)
	if a.processesEnd() {
		a.setPacketWatch(nil)
	}
	return a.record.Clone(), true, nil
}

// hibernate is the job of a sandbox that is being brought to the disk. What was begun is settled,
// also by a later service: the sandbox is as a whole in memory, or on the disk. Others may go to
// the disk, for which leave is called, once the first attempt has ended.
func (a *actor) hibernate(ctx context.Context, record lifecycle.Record, leave func()) func() {
	if !a.awaitSnapshots(ctx) && a.host.ctx.Err() != nil {
		return nil
	}
	a.holdPortsBefore(ctx, record)
	boxes, last := a.host.options.Boxes, context.Canceled
	keeps := a.host.keepsProcesses(&record)
	// Processes that are to end may have a signal that ends them once they run: no way leads back.
	begun := record.Sandbox.Status.State == lifecycle.StatePaused || !keeps
	ends := func(r *lifecycle.Record) bool {
		state := r.Sandbox.Status.State
		return state.Final() || state == lifecycle.StateStopping
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		if begun {
			processes, err := boxes.Hibernate(ctx, record)
			leave()
			switch last = err; {
			case err == nil:
				return func() { a.hibernated(processes) }
			case missing(err):
				return func() {
					a.stayInMemory(nil)
					a.needsInspect = true
				}
			}
		}
		ctx = a.host.ctx // whatever has come meanwhile waits until it is known where the processes are
		box, err := boxes.Inspect(ctx, record)
		switch {
		case ctx.Err() != nil || ends(a.snapshot()):
			return nil
		case err == nil && box.Status == lifecycle.BoxFrozen && (keeps && !errors.Is(last, lifecycle.ErrBoxUnavailable) || nothingBegun(last)):
			return func() { a.stayInMemory(last) }
		}
		begun = true
		a.log.Warn().Err(errors.Join(last, err)).Dur("retry_in", pause).Msg("a sandbox is neither in memory nor on the disk yet")
		a.await(ctx, pause, ends)
		if ctx.Err() != nil || ends(a.snapshot()) {
			return nil
		}
	}
}

// nothingBegun reports whether a sandbox is as before that could not be brought to the disk: the
// disk is full, or the engine cannot do that.
func nothingBegun(err error) bool {
	var failure *lifecycle.BoxFailure
	var refused *lifecycle.Error
	return errors.As(err, &failure) && failure.Reason == lifecycle.ReasonNoRoom ||
		errors.As(err, &refused) && refused.Kind == lifecycle.KindUnsupported
}

// keepsProcesses reports whether the processes of a sandbox can be written to the disk.
func (h *Host) keepsProcesses(record *lifecycle.Record) bool {
	return h.options.Boxes.MemoryUnsupported(*record) == nil
}

// stayInMemory records that the sandbox is not on the disk, for a cause or, where that is nil,
// because it has ended.
func (a *actor) stayInMemory(cause error) {
	if a.record.Hibernation != lifecycle.HibernationBegun {
		return
	}
	if cause != nil && !errors.Is(cause, context.Canceled) {
		a.hibernateLater(cause)
	}
	record := a.record
	record.Hibernation = ""
	a.diskAttempts.Add(1)
	a.saveOrRetry(synced, record)
}

// hibernated records that the sandbox is on the disk, with its processes or with its files alone.
func (a *actor) hibernated(processes bool) {
	state := a.state()
	if a.record.Hibernation != lifecycle.HibernationBegun || state.Final() || state == lifecycle.StateStopping {
		return
	}
	a.sleep.hibernatePause = 0
	record := withoutPlace(a.record)
	record.Stopped, record.Hibernation = true, lifecycle.HibernationFiles
	reason, message := lifecycle.ReasonHibernatedFiles, hibernatedFiles
	switch {
	case processes:
		record.Hibernation = lifecycle.HibernationProcesses
		reason, message = lifecycle.ReasonHibernated, hibernated
	case a.host.keepsProcesses(&record): // they were to be kept, and have ended otherwise
		record.Hibernation = ""
		reason, message = lifecycle.ReasonHostRebooted, lifecycle.HostRebooted
	}
	switch sleeps := record.Sandbox.Sleeps(); {
	case !sleeps && state == lifecycle.StatePaused && processes: // a client has paused it meanwhile
		reason, message = record.Sandbox.Status.Reason, pausedOnDisk
	case !sleeps && state == lifecycle.StatePaused:
		reason, message = record.Sandbox.Status.Reason, pausedWithFiles
	case !sleeps: // a client has resumed it meanwhile
		a.saveOrRetry(synced, record)
		return
	}
	record.Sandbox.Status.Reason, record.Sandbox.Status.Message = reason, message
	event := a.event(lifecycle.EventProgress)
	event.Reason, event.Message = reason, message
	a.log.Info().Str("reason", string(reason)).Msg(message)
	a.saveOrRetry(synced, record, event)
}

// onDisk returns the status of a sandbox that is on the disk.
func onDisk(hibernation lifecycle.Hibernation) (lifecycle.Reason, string) {
	if hibernation == lifecycle.HibernationProcesses {
		return lifecycle.ReasonHibernated, hibernated
	}
	return lifecycle.ReasonHibernatedFiles, hibernatedFiles
}

// sleepAgain records that a sandbox which could not be brought back from the disk sleeps there as
// before, and why. It returns false for one that is not on the disk.
func (a *actor) sleepAgain(cause string) bool {
	if a.state() != lifecycle.StateResuming || !a.record.Stopped ||
		a.record.Hibernation != lifecycle.HibernationProcesses && a.record.Hibernation != lifecycle.HibernationFiles {
		return false
	}
	reason, message := onDisk(a.record.Hibernation)
	a.record = withoutPlace(a.record)
	a.recordTransition(lifecycle.TriggerStopped, reason, cause+"; "+message)
	return true
}

// wakeFromDisk has a sandbox that is on the disk started again, because it was woken.
func (a *actor) wakeFromDisk() {
	a.sleep.woken = false
	a.recordTransition(lifecycle.TriggerResume, lifecycle.ReasonWoken, "is being woken from the disk")
}

// resumedFrom returns the status of a sandbox that runs again whose processes had ended.
func resumedFrom(hibernation lifecycle.Hibernation, place lifecycle.Place) (lifecycle.Reason, string) {
	if hibernation != lifecycle.HibernationProcesses {
		switch {
		case place.Restored:
			return lifecycle.ReasonContainerRunning, "its processes go on as they were in the snapshot; execd answers"
		case place.RestoreError != "":
			// What relies on the processes must not take the sandbox for one that has them.
			return lifecycle.ReasonRollbackFailed, "the processes of the snapshot cannot be restored: " + place.RestoreError +
				"; the sandbox was started again on the files of the snapshot"
		}
	}
	switch {
	case place.Restored:
		return lifecycle.ReasonContainerRunning, "its processes go on as they were when it fell asleep; execd answers"
	case place.RestoreError != "":
		return lifecycle.ReasonRestoreFailed, "the processes of the sandbox, which were on the disk, cannot be restored: " + place.RestoreError +
			"; the sandbox was started again on its files"
	}
	return lifecycle.ReasonContainerRunning, "started again on its files; execd answers"
}
