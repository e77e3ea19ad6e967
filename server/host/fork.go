package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/server/lifecycle"
)

const (
	// forkTimeout bounds how long a fork waits for its snapshot.
	forkTimeout = 10 * time.Minute
	// dropTimeout bounds how long a fork waits until its snapshot is Deleting.
	dropTimeout = 5 * time.Second
)

// Fork implements lifecycle.SnapshotStore. With an Idempotency-Key each fork has a key of its own,
// so that a repeated request returns those that there are and creates those that failed.
func (h *Host) Fork(
	ctx context.Context, sandboxID string, request lifecycle.ForkRequest, options lifecycle.CreateOptions,
) ([]lifecycle.ForkResult, error) {
	if request.Count < 1 || request.Count > lifecycle.MaxForks {
		return nil, lifecycle.Invalidf("count: must be within 1 and %d, got %d", lifecycle.MaxForks, request.Count)
	}
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return nil, err
	}
	if options.IdempotencyKey == "" {
		return h.fork(ctx, sandboxID, request, options, nil)
	}
	keys := forkKeys(sandboxID, request, options)
	// A request with the same key waits for this one's response.
	unlock, err := h.keys.lock(ctx, ownedKey{options.Owner, keys[0].Key})
	if err != nil {
		return nil, err
	}
	defer unlock()
	return h.fork(ctx, sandboxID, request, options, keys)
}

// forkKeys returns the keys of the forks of a request.
func forkKeys(sandboxID string, request lifecycle.ForkRequest, options lifecycle.CreateOptions) []lifecycle.IdempotencyKey {
	hash := sha256.New()
	// Strings, numbers and maps of strings always encode, in one way only, and a hash takes every
	// write.
	_ = json.NewEncoder(hash).Encode([]any{"fork", sandboxID, request.Count, request.Timeout, request.Env})
	keys := make([]lifecycle.IdempotencyKey, request.Count)
	for i := range keys {
		keys[i] = lifecycle.IdempotencyKey{
			Owner: options.Owner, Key: fmt.Sprintf("%s fork %d", options.IdempotencyKey, i), Digest: hex.EncodeToString(hash.Sum(nil)),
		}
	}
	return keys
}

// fork creates the forks of a request that earlier requests with the keys have not created; keys is
// nil without an Idempotency-Key.
func (h *Host) fork(
	ctx context.Context, sandboxID string, request lifecycle.ForkRequest, options lifecycle.CreateOptions, keys []lifecycle.IdempotencyKey,
) ([]lifecycle.ForkResult, error) {
	results := make([]lifecycle.ForkResult, request.Count)
	there := make([]bool, request.Count)
	missing := request.Count
	for i, key := range keys {
		sandbox, found, err := h.createdBefore(ctx, key)
		if err != nil {
			return nil, err
		}
		if results[i].Sandbox, there[i] = sandbox, found; found {
			missing--
		}
	}
	if missing == 0 {
		return results, nil
	}
	if err := h.forkMissing(ctx, sandboxID, request, options, keys, results, there); err != nil {
		if missing == request.Count {
			return nil, err
		}
		for i := range results {
			if !there[i] {
				results[i].Err = err
			}
		}
	}
	return results, nil
}

// forkMissing creates the forks that are not there, and sets their results. It returns an error
// when it created none for a reason that concerns all.
func (h *Host) forkMissing(
	ctx context.Context, sandboxID string, request lifecycle.ForkRequest, options lifecycle.CreateOptions, keys []lifecycle.IdempotencyKey,
	results []lifecycle.ForkResult, there []bool,
) error {
	snapshot, err := h.forkSnapshot(ctx, sandboxID, request.Snapshot)
	if err != nil {
		return err
	}
	// The forks that are not made yet keep it until they are.
	defer h.dropSnapshot(snapshot.ID)
	spec, err := h.forkSpec(sandboxID, snapshot.ID, request)
	if err != nil {
		return err
	}
	failed, first := 0, error(nil)
	for i := range results {
		if there[i] {
			continue
		}
		var key *lifecycle.IdempotencyKey
		if keys != nil {
			key = &keys[i]
			key.CreatedAt = h.options.Clock().UTC()
		}
		results[i].Sandbox, results[i].Err = h.createFork(ctx, spec, options, key)
		if err := results[i].Err; err != nil {
			failed++
			if first == nil {
				first = err
			}
		}
	}
	if failed == request.Count {
		return first
	}
	return nil
}

func (h *Host) createFork(
	ctx context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions, key *lifecycle.IdempotencyKey,
) (lifecycle.Sandbox, error) {
	leave, err := h.enter()
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	defer leave()
	return h.create(ctx, spec.Clone(), options, key, h.options.Clock())
}

// forkSnapshot takes the snapshot that forks begin with, and returns it when it is Ready.
func (h *Host) forkSnapshot(
	ctx context.Context, sandboxID string, request lifecycle.SnapshotRequest,
) (lifecycle.Snapshot, error) {
	snapshot, err := h.beginSnapshot(ctx, sandboxID, request, nil, true)
	if err != nil {
		return snapshot, err
	}
	taken, err := h.AwaitSnapshot(ctx, snapshot.ID, forkTimeout)
	if err == nil && taken.Status.State != lifecycle.SnapshotReady {
		switch {
		case h.ctx.Err() != nil:
			err = lifecycle.Stopping()
		case ctx.Err() != nil:
			err = ctx.Err()
		case taken.Status.State == lifecycle.SnapshotFailed:
			err = lifecycle.Conflictf("cannot fork: the snapshot of the sandbox failed: %s: %s", taken.Status.Reason, taken.Status.Message)
		default:
			err = lifecycle.Conflictf("cannot fork: the snapshot of the sandbox is %s", taken.Status.State)
		}
	}
	if err != nil {
		h.dropSnapshot(snapshot.ID)
	}
	return taken, err
}

// dropSnapshot deletes a temporary snapshot. Where that fails it is tried again until it succeeds,
// and the start of the next service deletes it, too. The fork's client may be gone.
func (h *Host) dropSnapshot(id string) {
	ctx, cancel := context.WithTimeout(h.ctx, dropTimeout)
	defer cancel()
	err := h.DeleteSnapshot(ctx, id)
	if err != nil && h.ctx.Err() == nil && !isKind(err, lifecycle.KindNoSnapshot) {
		h.options.Logger.Error().Err(err).Str("snapshot_id", id).Msg("cannot delete the snapshot of a fork; retrying")
		h.snapshots.unwant(id)
	}
}

// forkSpec returns what a fork is created with: what its sandbox was created with, and has in
// force, but for the environment.
func (h *Host) forkSpec(sandboxID, snapshotID string, request lifecycle.ForkRequest) (lifecycle.Spec, error) {
	a, err := h.registry.get(sandboxID)
	if err != nil {
		return lifecycle.Spec{}, err
	}
	record := a.snapshot().Clone()
	if record.Removed {
		return lifecycle.Spec{}, record.Sandbox.Status.State.Conflict("fork", lifecycle.StateRunning, lifecycle.StatePaused)
	}
	spec := record.Spec // without image, entrypoint and policy, which are the snapshot's
	spec.SnapshotID, spec.Env, spec.NetworkPolicy, spec.ImageEntrypoint = snapshotID, request.Env, nil, false
	spec.Metadata, spec.Extensions = record.Sandbox.Metadata, record.Sandbox.Extensions
	spec.Lifecycle = record.Sandbox.Lifecycle
	if request.Timeout > 0 {
		spec.Timeout = request.Timeout
	}
	return spec, nil
}

// isKind reports whether a client sees the error as one of the kind.
func isKind(err error, kind lifecycle.Kind) bool {
	var known *lifecycle.Error
	return errors.As(err, &known) && known.Kind == kind
}
