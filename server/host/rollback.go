package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"sandbox.internal/server/lifecycle"
)

// Rollback implements lifecycle.SnapshotStore.
func (h *Host) Rollback(ctx context.Context, sandboxID, snapshotID string) error {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return err
	}
	a, err := h.registry.get(sandboxID)
	if err != nil {
		return err
	}
	record := a.snapshot()
	snapshot, done, err := h.snapshots.use(snapshotID, func(s *lifecycle.Snapshot) bool {
		return s.Owner == record.Sandbox.Owner || s.SandboxID == sandboxID || s.ID == record.Sandbox.SnapshotID
	})
	if err != nil {
		return err
	}
	defer done()
	// The egress sidecar is made again with the policy of the record: a change is either in it, or
	// comes too late.
	a.policy.Lock()
	defer a.policy.Unlock()
	return a.do(ctx, func() error { return a.beginRollback(snapshot) })
}

// beginRollback records that the sandbox is to be given the files of a snapshot.
func (a *actor) beginRollback(snapshot lifecycle.Snapshot) error {
	if state := a.state(); state != lifecycle.StateRunning && state != lifecycle.StatePaused {
		return state.Conflict("roll back", lifecycle.StateRunning, lifecycle.StatePaused)
	}
	same := snapshot.Image == a.record.Sandbox.Image
	if known := a.record.EngineImage; known != "" {
		same = snapshot.EngineImage == known
	}
	if !same {
		return lifecycle.Conflictf("cannot roll back: snapshot %s is of the image %s, and the sandbox of another one, %s",
			snapshot.ID, snapshot.Image, a.record.Sandbox.Image)
	}
	if err := a.checkOrigin(snapshot); err != nil {
		return err
	}
	record, err := a.afterTransition(lifecycle.TriggerRollback,
		lifecycle.Status{Reason: lifecycle.ReasonRollback, Message: "is being given the files of snapshot " + snapshot.ID})
	if err != nil {
		return err
	}
	record = withoutPlace(record)
	record.Rollback, record.Stopped, record.Asleep = snapshot.ID, true, a.record.Sandbox.Sleeps()
	begun := a.record.Hibernation == lifecycle.HibernationBegun
	if begun { // where its processes are is not of interest any more
		record.Hibernation = ""
	}
	if err := a.commit(synced, record, a.eventsTo(record)...); err != nil {
		return err
	}
	if a.sleep.queued || begun && a.host.keepsProcesses(&record) {
		a.cancelJob()
	}
	return nil
}

// checkOrigin refuses a snapshot of another sandbox that ran in another runtime class, or under
// another policy: its files must not come out of what held them by a rollback, as they cannot by a
// create. Those that the sandbox has had itself it may have again, under the policy in force.
func (a *actor) checkOrigin(snapshot lifecycle.Snapshot) error {
	if snapshot.Kind == lifecycle.SnapshotMemory && snapshot.SandboxID != a.id {
		return ofItsSandbox("roll back", snapshot)
	}
	if snapshot.SandboxID == a.id || snapshot.ID == a.record.Sandbox.SnapshotID {
		return nil
	}
	if has, want := a.record.Sandbox.RuntimeClass, snapshot.Origin.RuntimeClass; has != want {
		return lifecycle.Conflictf(
			"cannot roll back: snapshot %s is of the runtime class %q, and the sandbox of %q; create a sandbox with the snapshot instead",
			snapshot.ID, want, has)
	}
	if want := snapshot.Origin.NetworkPolicy; want != nil && !samePolicy(want, a.record.Spec.NetworkPolicy) {
		return lifecycle.Conflictf(
			"cannot roll back: the network policy of snapshot %s differs from the one of the sandbox; create a sandbox with the snapshot instead",
			snapshot.ID)
	}
	return nil
}

// ofItsSandbox refuses what only the sandbox of a snapshot of memory can do with it.
func ofItsSandbox(what string, snapshot lifecycle.Snapshot) error {
	return lifecycle.Conflictf(
		"cannot %s: snapshot %s is one of memory, which belongs to its sandbox %s: its processes know the token of that",
		what, snapshot.ID, snapshot.SandboxID)
}

// samePolicy reports whether a sandbox's policy is the one of a snapshot; nil is none.
func samePolicy(want, has *lifecycle.NetworkPolicy) bool {
	return has != nil && cmp.Or(want.DefaultAction, "allow") == cmp.Or(has.DefaultAction, "allow") && want.DryRun == has.DryRun &&
		slices.Equal(want.Egress, has.Egress)
}

// withoutPlace returns the record of a sandbox that is reached nowhere, because its processes are
// gone or are about to be ended.
func withoutPlace(record lifecycle.Record) lifecycle.Record {
	record.Port = 0
	if record.Sidecar != nil {
		sidecar := *record.Sidecar
		sidecar.Port, sidecar.Restarts, sidecar.Silent = 0, 0, false
		record.Sidecar = &sidecar
	}
	return record
}

// rollback is the job of Resuming for a sandbox that is to have the files of a snapshot. A service
// that is killed meanwhile repeats it.
func (a *actor) rollback(ctx context.Context, record lifecycle.Record) func() {
	if !a.awaitSnapshots(ctx) {
		return nil
	}
	var refused *lifecycle.BoxFailure
	err := a.retry(ctx, "roll back", func(ctx context.Context) error {
		err := a.host.options.Boxes.Rollback(ctx, record, record.Rollback)
		if errors.As(err, &refused) {
			return nil
		}
		return err
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case refused != nil:
		return a.rollbackFailed(ctx, record, refused)
	case err != nil:
		return a.rollbackFailed(ctx, record, err)
	}
	// It becomes durable while the box is started.
	a.post(func() { a.rolledBack(record.Rollback) })
	return a.restart(ctx, record)
}

// rolledBack records that the files of the sandbox are those of a snapshot: from here on it only
// has to be started.
func (a *actor) rolledBack(id string) {
	if a.record.Rollback != id {
		return // it is being stopped
	}
	record := a.record
	record.Rollback, record.Sandbox.SnapshotID, record.LastSnapshot, record.Hibernation = "", id, "", ""
	a.saveOrRetry(synced, record)
}

// rollbackFailed returns the outcome of a rollback that the engine has refused. A box that runs was
// not touched, and runs on; any other can be started again, on its own files or the snapshot's, and
// sleeps on where it did.
func (a *actor) rollbackFailed(ctx context.Context, record lifecycle.Record, cause error) func() {
	message := fmt.Sprintf("cannot roll back to snapshot %s: %v", record.Rollback, cause)
	box, err := a.host.options.Boxes.Inspect(ctx, record)
	if err == nil && box.Status == lifecycle.BoxFrozen {
		if err = a.host.options.Boxes.Thaw(ctx, record); err == nil {
			box.Status = lifecycle.BoxRunning
		}
	}
	var failure *lifecycle.BoxFailure
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, lifecycle.ErrNoBox):
		return a.fail(lifecycle.ReasonRemovedExternally, lifecycle.RemovedExternally)
	case errors.As(err, &failure):
		return a.broken(ctx, err)
	case err != nil || box.Status != lifecycle.BoxRunning:
		return func() {
			if !a.record.Asleep || !a.sleepAgain(message) {
				a.stop(lifecycle.ReasonRollbackFailed, message)
			}
		}
	}
	if err := a.syncSidecar(ctx, &record, box.Place); err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("the egress sidecar does not answer")
	}
	return func() {
		if a.state() != lifecycle.StateResuming {
			return
		}
		a.record.Port, a.record.Stopped = box.Place.Port, false
		a.recordTransition(lifecycle.TriggerResumed, lifecycle.ReasonRollbackFailed, message+"; its files and processes are as they were")
	}
}
