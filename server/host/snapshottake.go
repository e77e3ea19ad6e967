package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

var (
	// errSandboxEnded is why a snapshot of a sandbox is given up that ends, or has ended.
	errSandboxEnded = errors.New("the sandbox ended before the snapshot was made")
	// errSnapshotDeleted is why one is given up that a client has deleted.
	errSnapshotDeleted = errors.New("the snapshot was deleted")
)

// TakeSnapshot implements lifecycle.SnapshotStore.
func (h *Host) TakeSnapshot(
	ctx context.Context, sandboxID string, request lifecycle.SnapshotRequest,
) (lifecycle.Snapshot, error) {
	if request.IdempotencyKey == "" {
		return h.beginSnapshot(ctx, sandboxID, request, nil, false)
	}
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return lifecycle.Snapshot{}, err
	}
	key := &lifecycle.IdempotencyKey{
		// The same key may also be that of a create.
		Owner: request.Owner, Key: request.IdempotencyKey + " snapshot", Digest: request.Digest(sandboxID), CreatedAt: h.options.Clock().UTC(),
	}
	// A request with the same key waits for this one's response.
	unlock, err := h.keys.lock(ctx, ownedKey{key.Owner, key.Key})
	if err != nil {
		return lifecycle.Snapshot{}, err
	}
	defer unlock()
	if first, found, err := h.takenBefore(ctx, *key, request.IdempotencyKey); found || err != nil {
		return first, err
	}
	return h.beginSnapshot(ctx, sandboxID, request, key, false)
}

// takenBefore returns the snapshot that an earlier request with the key has asked for.
func (h *Host) takenBefore(ctx context.Context, key lifecycle.IdempotencyKey, sent string) (lifecycle.Snapshot, bool, error) {
	earlier, found, err := h.options.Store.FindKey(ctx, key.Owner, key.Key, h.options.Clock().Add(-lifecycle.IdempotencyWindow))
	if err != nil || !found {
		return lifecycle.Snapshot{}, false, err
	}
	if earlier.Digest != key.Digest {
		return lifecycle.Snapshot{}, false, lifecycle.Conflictf("Idempotency-Key: %q was used with another request body", sent)
	}
	snapshot, err := h.Snapshot(ctx, earlier.SandboxID)
	if err != nil {
		return lifecycle.Snapshot{}, false, lifecycle.Conflictf("Idempotency-Key: the snapshot %s that %q asked for is gone", earlier.SandboxID, sent)
	}
	return snapshot, true, nil
}

func (h *Host) beginSnapshot(
	ctx context.Context, sandboxID string, request lifecycle.SnapshotRequest, key *lifecycle.IdempotencyKey, temporary bool,
) (snapshot lifecycle.Snapshot, err error) {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return snapshot, err
	}
	if err := request.Validate(); err != nil {
		return snapshot, err
	}
	a, err := h.registry.get(sandboxID)
	if err != nil {
		return snapshot, err
	}
	err = a.do(ctx, func() error {
		snapshot, err = a.beginSnapshot(request, key, temporary)
		return err
	})
	return snapshot.Clone(), err
}

// beginSnapshot records a snapshot of the actor's sandbox, and has it taken.
func (a *actor) beginSnapshot(request lifecycle.SnapshotRequest, key *lifecycle.IdempotencyKey, temporary bool) (lifecycle.Snapshot, error) {
	if state := a.state(); state != lifecycle.StateRunning && state != lifecycle.StatePaused {
		return lifecycle.Snapshot{}, state.Conflict("take a snapshot", lifecycle.StateRunning, lifecycle.StatePaused)
	}
	h := a.host
	if request.Kind == lifecycle.SnapshotMemory {
		if err := h.options.Boxes.MemoryUnsupported(a.record); err != nil {
			return lifecycle.Snapshot{}, err
		}
		if a.record.Stopped {
			return lifecycle.Snapshot{}, lifecycle.Conflictf("cannot take a snapshot of memory: the processes of the sandbox have ended, only its files are kept")
		}
	}
	if err := h.snapshots.reserve(request); err != nil {
		return lifecycle.Snapshot{}, err
	}
	snapshot := a.newSnapshot(request, temporary)
	events := []lifecycle.Event{a.snapshotEvent(snapshot)}
	if key != nil {
		key.SandboxID = snapshot.ID
	}
	if err := h.options.Store.InsertSnapshot(h.ctx, snapshot, key, events...); err != nil {
		h.snapshots.unreserve(request.Owner)
		if h.ctx.Err() != nil {
			return lifecycle.Snapshot{}, lifecycle.Stopping()
		}
		return lifecycle.Snapshot{}, fmt.Errorf("save the new snapshot: %w", err)
	}
	h.notifier.notify(events)
	k := h.snapshots.add(h.ctx, snapshot, true)
	h.tasks.Go(func() { h.take(k) })
	return snapshot, nil
}

func (a *actor) newSnapshot(request lifecycle.SnapshotRequest, temporary bool) lifecycle.Snapshot {
	now := a.host.options.Clock().UTC()
	snapshot := lifecycle.Snapshot{
		ID: uuid.NewString(), SandboxID: a.id, ParentID: parentOf(&a.record), Name: request.Name, Comment: request.Comment, Metadata: request.Metadata,
		Owner: request.Owner, Kind: request.Kind, Image: a.record.Sandbox.Image, CreatedAt: now, Temporary: temporary,
		Origin: originOf(&a.record), MaxBytes: request.MaxBytes,
		Status: lifecycle.SnapshotStatus{State: lifecycle.SnapshotCreating, LastTransitionAt: now},
	}
	if request.TTL > 0 {
		snapshot.ExpiresAt = wall(now.Add(request.TTL))
	}
	if temporary { // its fork deletes it before; where that fails, the expiry does
		snapshot.ExpiresAt = wall(now.Add(2 * forkTimeout))
	}
	return snapshot.Clone()
}

// parentOf returns the snapshot that the files of a sandbox were last kept in, or come from.
func parentOf(record *lifecycle.Record) string {
	return cmp.Or(record.LastSnapshot, record.Sandbox.SnapshotID)
}

// originOf returns what a snapshot keeps of what its sandbox was created with.
func originOf(record *lifecycle.Record) lifecycle.SnapshotOrigin {
	origin := lifecycle.SnapshotOrigin{
		Entrypoint: record.Sandbox.Entrypoint, Resources: record.Spec.Resources,
		RuntimeClass: record.Sandbox.RuntimeClass, NetworkPolicy: record.Spec.NetworkPolicy,
	}
	if record.Spec.ImageEntrypoint {
		origin.Entrypoint, origin.ImageEntrypoint = nil, true
	}
	// A policy that allows everything is what a sandbox has that has none.
	if p := origin.NetworkPolicy; p != nil && (p.DefaultAction == "" || p.DefaultAction == "allow") && len(p.Egress) == 0 {
		origin.NetworkPolicy = nil
	}
	return origin
}

// take takes a snapshot when its turn has come, and records what has become of it. When the service
// ends meanwhile, the next one goes on.
func (h *Host) take(k *kept) {
	defer func() {
		select { // those behind it still wait for those before it
		case <-k.before:
		case <-h.ctx.Done():
		}
		h.snapshots.taken(k)
	}()
	files, err := h.takeInTurn(k)
	for h.ctx.Err() == nil {
		failed := h.settle(k, files, err)
		if failed == nil || h.ctx.Err() != nil {
			return
		}
		h.options.Logger.Error().Err(failed).Str("snapshot_id", k.id).Msg("cannot save what has become of a snapshot; retrying")
		clock.Sleep(h.ctx, saveInterval)
	}
}

// settle records what has become of a snapshot that was taken, or with err could not be, unless it
// was deleted meanwhile.
func (h *Host) settle(k *kept, files lifecycle.SnapshotFiles, err error) error {
	unlock, locked := k.lock(h.ctx)
	if locked != nil {
		return locked
	}
	defer unlock()
	record, _, _ := h.snapshots.read(k)
	if record.Status.State != lifecycle.SnapshotCreating {
		return nil
	}
	if err != nil {
		reason, message := whyFailed(k, err)
		return h.saveSnapshot(h.ctx, k, h.failed(record, reason, message))
	}
	record.Status = lifecycle.SnapshotStatus{State: lifecycle.SnapshotReady, LastTransitionAt: h.options.Clock().UTC()}
	return h.saveSnapshot(h.ctx, k, record.With(files))
}

// failed returns the record of a snapshot that has failed. It is kept for as long as that of a
// sandbox that has ended.
func (h *Host) failed(record lifecycle.Snapshot, reason lifecycle.Reason, message string) lifecycle.Snapshot {
	now := h.options.Clock().UTC()
	record.Status = lifecycle.SnapshotStatus{State: lifecycle.SnapshotFailed, Reason: reason, Message: message, LastTransitionAt: now}
	until := wall(now.Add(h.options.TerminatedRetention))
	if record.ExpiresAt.IsZero() || until.Before(record.ExpiresAt) {
		record.ExpiresAt = until
	}
	return record
}

// whyFailed returns the reason and the message of a snapshot that could not be taken.
func whyFailed(k *kept, err error) (lifecycle.Reason, string) {
	var failure *lifecycle.BoxFailure
	switch {
	case k.ctx.Err() != nil, errors.Is(err, errSandboxEnded), missing(err):
		if k.recovered {
			return lifecycle.ReasonSandboxEnded, "the service ended while the snapshot was made, and the sandbox has ended since"
		}
		if missing(err) {
			return lifecycle.ReasonSandboxEnded, fmt.Sprintf("%v: %v", errSandboxEnded, err)
		}
		return lifecycle.ReasonSandboxEnded, errSandboxEnded.Error()
	case errors.As(err, &failure):
		return failure.Reason, failure.Message
	case errors.Is(err, lifecycle.ErrBoxUnavailable):
		return lifecycle.ReasonEngineUnavailable, err.Error()
	}
	return lifecycle.ReasonSnapshotFailed, err.Error()
}

// takeInTurn waits until those of the sandbox that were asked for before are taken, and for a place
// among those that are taken at once, and takes the snapshot.
func (h *Host) takeInTurn(k *kept) (files lifecycle.SnapshotFiles, err error) {
	if k.found != nil {
		return *k.found, nil
	}
	select {
	case <-k.before:
	case <-k.ctx.Done():
		return files, context.Cause(k.ctx)
	}
	snapshot, _, _ := h.snapshots.read(k)
	leave, err := h.snapshots.slots.enter(k.ctx, snapshot.Owner)
	if err != nil {
		return files, err
	}
	defer leave()
	a, err := h.registry.get(snapshot.SandboxID)
	if err != nil {
		return files, errSandboxEnded
	}
	record := a.snapshot()
	if state := record.Sandbox.Status.State; state.Final() || state == lifecycle.StateStopping || state == lifecycle.StatePending {
		return files, errSandboxEnded
	}
	h.snapshots.setParent(k, parentOf(record))
	a.taking.Add(1)
	defer func() {
		a.taking.Add(1)
		a.post(a.inspectSkipped)
	}()
	snapshot, _, _ = h.snapshots.read(k) // with its parent
	return h.takeNow(k, record.Clone(), snapshot, leave)
}

// setParent notes the parent as it is when the snapshot is taken. It becomes durable with the next
// state.
func (s *snapshots) setParent(k *kept, parent string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.record.ParentID = parent
}

// takeNow has the engine take a snapshot that has a slot, which leave frees. While the engine does
// not answer it tries again, but not for ever, and others may have the slot meanwhile.
func (h *Host) takeNow(
	k *kept, record lifecycle.Record, snapshot lifecycle.Snapshot, leave func(),
) (files lifecycle.SnapshotFiles, err error) {
	defer func() { leave() }()
	began := h.options.Clock()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		files, err = h.options.Boxes.TakeSnapshot(k.ctx, record, snapshot, h.snapshots.left(snapshot))
		if err == nil || k.ctx.Err() != nil || !errors.Is(err, lifecycle.ErrBoxUnavailable) || h.options.Clock().Sub(began) > stuckAfter {
			return files, err
		}
		h.options.Logger.Warn().
			Err(err).
			Str("snapshot_id", k.id).
			Dur("retry_in", pause).
			Msg("a snapshot waits for the container engine")
		leave()
		if !clock.Sleep(k.ctx, pause) {
			return files, context.Cause(k.ctx)
		}
		if leave, err = h.snapshots.slots.enter(k.ctx, snapshot.Owner); err != nil {
			return files, err
		}
	}
}

// cancelSnapshots gives up the snapshots of the actor's sandbox, which ends, that are not taken
// yet.
func (a *actor) cancelSnapshots() {
	for _, k := range a.host.snapshots.line(a.id) {
		k.cancel(errSandboxEnded)
	}
}

// awaitSnapshots waits until the snapshots of the actor's sandbox are taken that were asked for
// before. It returns false when ctx ends first.
func (a *actor) awaitSnapshots(ctx context.Context) bool {
	for _, k := range a.host.snapshots.line(a.id) {
		select {
		case <-k.done:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// inspectSkipped inspects the box again where the outcome of an inspection could not be used,
// because a snapshot was being taken, which freezes the box.
func (a *actor) inspectSkipped() {
	if a.skippedInspect {
		a.skippedInspect, a.needsInspect = false, true
	}
}
