package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// keptFailures is how many records of snapshots that have failed an owner has at most; over it the
// oldest are forgotten before their time.
const keptFailures = 100

// DeleteSnapshot implements lifecycle.SnapshotStore.
func (h *Host) DeleteSnapshot(ctx context.Context, id string) error {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return err
	}
	leave, err := h.enter()
	if err != nil {
		return err
	}
	defer leave()
	k, err := h.snapshots.get(id)
	if err != nil {
		return err
	}
	return h.deleteSnapshot(ctx, k)
}

// deleteSnapshot makes a snapshot Deleting, and has it removed. The service must not end meanwhile.
func (h *Host) deleteSnapshot(ctx context.Context, k *kept) error {
	unlock, err := k.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	record, gone, _ := h.snapshots.read(k)
	if gone || record.Status.State == lifecycle.SnapshotDeleting {
		return lifecycle.NoSnapshot(k.id)
	}
	record.Status = lifecycle.SnapshotStatus{State: lifecycle.SnapshotDeleting, LastTransitionAt: h.options.Clock().UTC()}
	if err := h.saveSnapshot(ctx, k, record); err != nil {
		if h.ctx.Err() != nil {
			return lifecycle.Stopping()
		}
		return fmt.Errorf("save snapshot %s: %w", k.id, err)
	}
	k.cancel(errSnapshotDeleted)
	h.tasks.Go(func() { h.removeSnapshot(k) })
	return nil
}

// removeSnapshot removes a snapshot that is Deleting, once it is not being taken and no sandbox
// needs it, and forgets it. When the service ends meanwhile, the next one goes on.
func (h *Host) removeSnapshot(k *kept) {
	select {
	case <-k.done:
	case <-h.ctx.Done():
		return
	}
	for {
		_, _, changed := h.snapshots.read(k)
		if !h.snapshots.needed(k.id) {
			break
		}
		select {
		case <-changed:
		case <-h.ctx.Done():
			return
		}
	}
	remove := func() error {
		if err := h.options.Boxes.RemoveSnapshot(h.ctx, k.id); err != nil {
			return err
		}
		h.measureSnapshots()
		return h.options.Store.ForgetSnapshot(h.ctx, k.id)
	}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := remove()
		if err == nil {
			h.snapshots.remove(k)
			return
		}
		if h.ctx.Err() != nil {
			return
		}
		h.options.Logger.Warn().Err(err).Str("snapshot_id", k.id).Dur("retry_in", pause).Msg("cannot remove a snapshot; retrying")
		if !clock.Sleep(h.ctx, pause) {
			return
		}
	}
}

// expireSnapshots deletes snapshots whose time is up, for as long as the host runs.
func (h *Host) expireSnapshots() {
	defer h.tasks.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(h.deleteDueSnapshots())
		select {
		case <-timer.C:
		case <-h.snapshots.due:
		case <-h.ctx.Done():
			return
		}
	}
}

// deleteDueSnapshots deletes the snapshots whose time is up, those that could not be deleted when
// they were to be, and those that have failed and are too many. It returns when to look again. The
// service must not end meanwhile.
func (h *Host) deleteDueSnapshots() time.Duration {
	now, next := h.options.Clock(), time.Hour
	failed := map[string][]lifecycle.Snapshot{}
	due := h.snapshots.unwanted()
	for _, s := range h.snapshots.all() {
		switch {
		case s.Status.State == lifecycle.SnapshotDeleting:
		case !s.ExpiresAt.IsZero() && !now.Before(s.ExpiresAt):
			due = append(due, s.ID)
		case s.Status.State == lifecycle.SnapshotFailed:
			failed[s.Owner] = append(failed[s.Owner], s)
			fallthrough
		case !s.ExpiresAt.IsZero():
			next = min(next, s.ExpiresAt.Sub(now))
		}
	}
	for _, list := range failed {
		slices.SortFunc(list, func(a, b lifecycle.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
		for _, s := range list[min(keptFailures, len(list)):] {
			due = append(due, s.ID)
		}
	}
	for _, id := range due {
		k, err := h.snapshots.get(id)
		if err != nil {
			continue // it was deleted meanwhile
		}
		if err := h.deleteSnapshot(h.ctx, k); err != nil && !isKind(err, lifecycle.KindNoSnapshot) && h.ctx.Err() == nil {
			h.options.Logger.Error().Err(err).Str("snapshot_id", id).Msg("cannot delete a snapshot whose time is up; retrying")
			next = min(next, saveInterval)
		}
	}
	return next
}

// loadSnapshots reads the snapshots of earlier services, before anything is done for sandboxes.
func (h *Host) loadSnapshots(ctx context.Context) error {
	if h.options.Boxes.SnapshotsUnsupported() != nil {
		return nil // their records stay for an engine that has them
	}
	records, err := h.options.Store.LoadSnapshots(ctx)
	if err != nil {
		return fmt.Errorf("load the snapshots: %w", err)
	}
	for _, record := range records {
		take := record.Status.State == lifecycle.SnapshotCreating && !record.Temporary
		h.snapshots.add(h.ctx, record, take).recovered = true
	}
	return nil
}

// recoverSnapshots goes on with what earlier services have begun.
func (h *Host) recoverSnapshots(ctx context.Context) error {
	if h.options.Boxes.SnapshotsUnsupported() != nil {
		return nil
	}
	found, err := h.options.Boxes.Snapshots(ctx)
	if err != nil {
		return fmt.Errorf("list the snapshots: %w", err)
	}
	for _, record := range h.snapshots.all() {
		k, err := h.snapshots.get(record.ID)
		if err != nil {
			continue
		}
		files, there := found[record.ID]
		switch state := record.Status.State; {
		case state == lifecycle.SnapshotDeleting:
			h.tasks.Go(func() { h.removeSnapshot(k) })
		case record.Temporary: // no one can use it any more
			if err := h.deleteSnapshot(ctx, k); err != nil {
				return err
			}
		case state == lifecycle.SnapshotCreating:
			if there {
				k.found = &files.SnapshotFiles
			}
			h.tasks.Go(func() { h.take(k) })
		case state == lifecycle.SnapshotReady && !there:
			if err := h.lostSnapshot(ctx, k); err != nil {
				return err
			}
		}
	}
	if err := h.adoptSnapshots(ctx, found); err != nil {
		return err
	}
	h.removeStraySnapshots(ctx, found)
	return nil
}

// lostSnapshot makes a Ready snapshot Failed whose files the engine does not have.
func (h *Host) lostSnapshot(ctx context.Context, k *kept) error {
	unlock, err := k.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	record, _, _ := h.snapshots.read(k)
	h.options.Logger.Error().Str("snapshot_id", k.id).Msg("the container engine does not have the files of a snapshot")
	record = h.failed(record, lifecycle.ReasonSnapshotFailed, "its files are missing at the container engine")
	if err := h.saveSnapshot(ctx, k, record); err != nil {
		return fmt.Errorf("save snapshot %s, whose files are missing: %w", k.id, err)
	}
	return nil
}

// adoptSnapshots takes up the snapshots of the engine whose records the store has lost, by the
// records that they carry. A snapshot is removed at the engine before its record is forgotten, so
// none of them was deleted.
func (h *Host) adoptSnapshots(ctx context.Context, found map[string]lifecycle.FoundSnapshot) error {
	for id, s := range found {
		if _, err := h.snapshots.get(id); err == nil || s.Record == nil || s.Record.Temporary {
			continue
		}
		record := s.Record.With(s.SnapshotFiles)
		record.Status = lifecycle.SnapshotStatus{State: lifecycle.SnapshotReady, LastTransitionAt: h.options.Clock().UTC()}
		if err := h.options.Store.InsertSnapshot(ctx, record, nil); err != nil {
			return fmt.Errorf("save snapshot %s, rebuilt from the container engine: %w", id, err)
		}
		h.snapshots.add(h.ctx, record, false)
		h.options.Logger.Warn().Str("snapshot_id", id).Msg("snapshot rebuilt from the container engine: the store had no record of it")
	}
	return nil
}

// sweepSnapshots removes what the engine has and no record needs, deletes snapshots whose time is
// up by the wall clock, and notes the sizes of the others.
func (h *Host) sweepSnapshots() {
	if h.options.Boxes.SnapshotsUnsupported() != nil {
		return
	}
	h.deleteDueSnapshots()
	if found := h.measureSnapshots(); found != nil {
		h.removeStraySnapshots(h.ctx, found)
	}
}

// measureSnapshots notes what the snapshots that are Ready have of the disk, which is more once one
// is removed that had files which a later one has, too. It returns what the engine has, nil when
// that cannot be read.
func (h *Host) measureSnapshots() map[string]lifecycle.FoundSnapshot {
	h.snapshots.measuring.Lock()
	defer h.snapshots.measuring.Unlock()
	found, err := h.options.Boxes.Snapshots(h.ctx)
	if err != nil {
		h.options.Logger.Warn().Err(err).Msg("cannot compare snapshots with their records")
		return nil
	}
	for id, s := range found {
		k, err := h.snapshots.get(id)
		if err != nil {
			continue
		}
		if err := h.noteSize(k, s.ExclusiveSize); err != nil && h.ctx.Err() == nil {
			h.options.Logger.Error().Err(err).Str("snapshot_id", id).Msg("cannot save the size of a snapshot; the next sweep tries again")
		}
	}
	return found
}

// noteSize saves what a Ready snapshot has of the disk alone, if that has changed. It is no event,
// and a loss of power may undo it: the next sweep reads it again.
func (h *Host) noteSize(k *kept, size int64) error {
	differs := func() (lifecycle.Snapshot, bool) {
		record, gone, _ := h.snapshots.read(k)
		return record, !gone && record.Status.State == lifecycle.SnapshotReady && record.ExclusiveSize != size
	}
	if _, now := differs(); !now {
		return nil
	}
	unlock, err := k.lock(h.ctx)
	if err != nil {
		return err
	}
	defer unlock()
	record, now := differs()
	if !now {
		return nil
	}
	record.ExclusiveSize = size
	if err := h.options.Store.SaveSnapshotUnsynced(h.ctx, record); err != nil {
		return err
	}
	h.snapshots.set(k, record)
	return nil
}

// removeStraySnapshots removes snapshots of the engine that have no record, or failed as far as the
// service knows.
func (h *Host) removeStraySnapshots(ctx context.Context, found map[string]lifecycle.FoundSnapshot) {
	for id := range found {
		if k, err := h.snapshots.get(id); err == nil {
			if record, gone, _ := h.snapshots.read(k); !gone && record.Status.State != lifecycle.SnapshotFailed {
				continue
			}
		}
		err := h.options.Boxes.RemoveSnapshot(ctx, id)
		h.options.Logger.Warn().AnErr("error", err).Str("snapshot_id", id).Msg("removed a snapshot that has no record")
	}
}
