package host

import (
	"errors"
	"slices"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// digestSnapshots has the digests of snapshots made, one at a time and the oldest first, for as
// long as the host runs: the digest of a later one takes less when those before are made.
func (h *Host) digestSnapshots() {
	defer h.tasks.Done()
	if h.options.Boxes.ComparisonUnsupported() != nil {
		return
	}
	for pause := 50 * time.Millisecond; ; {
		k := h.snapshots.undigested()
		if k == nil {
			select {
			case <-h.snapshots.ready:
				continue
			case <-h.ctx.Done():
				return
			}
		}
		err := h.digestSnapshot(k)
		switch {
		case h.ctx.Err() != nil:
			return
		case err == nil, k.ctx.Err() != nil: // it is deleted
			pause = 50 * time.Millisecond
			h.measureSnapshots() // the hashes are on the disk, too
			continue
		case !errors.Is(err, lifecycle.ErrBoxUnavailable) && !errors.Is(err, errNotSaved):
			h.options.Logger.Warn().Err(err).Str("snapshot_id", k.id).Msg("cannot make the digest of a snapshot; the next service tries again")
			h.snapshots.skipDigest(k)
			continue
		}
		h.options.Logger.Warn().Err(err).Str("snapshot_id", k.id).Dur("retry_in", pause).Msg("cannot make the digest of a snapshot; retrying")
		if !clock.Sleep(h.ctx, pause) {
			return
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// errNotSaved is why a digest is not in the store.
var errNotSaved = errors.New("the store cannot save it")

// digestSnapshot has the digest of a snapshot made, and saves it, if the snapshot is still Ready.
// That is no event, and a loss of power may undo it: the next service does it again.
func (h *Host) digestSnapshot(k *kept) error {
	digest, err := h.options.Boxes.DigestSnapshot(k.ctx, k.id)
	if err != nil {
		return err
	}
	unlock, err := k.lock(k.ctx)
	if err != nil {
		return err
	}
	defer unlock()
	record, gone, _ := h.snapshots.read(k)
	if gone || record.Status.State != lifecycle.SnapshotReady {
		return nil
	}
	record.TreeDigest = digest
	if err := h.options.Store.SaveSnapshotUnsynced(h.ctx, record); err != nil {
		return errors.Join(errNotSaved, err)
	}
	h.snapshots.set(k, record)
	return nil
}

// undigested returns the oldest snapshot whose digest is to be made; nil when there is none.
func (s *snapshots) undigested() *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*kept
	for _, k := range s.kept {
		if r := &k.record; r.Status.State == lifecycle.SnapshotReady && r.TreeDigest == "" && !r.Temporary && !k.undigestible && k.ctx.Err() == nil {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return slices.MinFunc(list, func(a, b *kept) int { return a.record.CreatedAt.Compare(b.record.CreatedAt) })
}

// skipDigest has the digest of a snapshot not made by this service.
func (s *snapshots) skipDigest(k *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.undigestible = true
}
