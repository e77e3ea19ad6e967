package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// rememberedBytes is what a sandbox has in memory, beside its processes, before its snapshots.
const rememberedBytes = 64 << 20

// measureMemorySnapshots measures snapshots of the memory of a running sandbox of gVisor's, from
// the request until it is Ready, and rollbacks to one until a command has printed. The floors are a
// copy of as many bytes, on the same disk, and a cold create of the same sandbox.
func (b *bench) measureMemorySnapshots(ctx context.Context) error {
	return b.withLocal(ctx, "runsc", func(s *service, _ *engine) error {
		id, daemon, err := s.usableWithID(ctx)
		if err != nil {
			return err
		}
		if err := daemon.complete(ctx, fmt.Sprintf("head -c %d /dev/urandom >/dev/shm/remembered", rememberedBytes)); err != nil {
			return err
		}
		if b.selected(rowMemorySnapshot) {
			err = b.measureMemorySnapshotsOf(ctx, s, id)
		}
		if b.selected(rowMemoryRollback) {
			err = errors.Join(err, b.measureMemoryRollback(ctx, s, id))
		}
		return err
	})
}

func (b *bench) measureMemorySnapshotsOf(ctx context.Context, s *service, id string) error {
	copied, err := b.directory("remembered")
	if err != nil {
		return err
	}
	from := filepath.Join(copied, "from")
	if err := os.Mkdir(from, 0o755); err != nil { //nolint:gosec // of the bench
		return err
	}
	if err := os.WriteFile(filepath.Join(from, "bytes"), make([]byte, rememberedBytes), 0o600); err != nil {
		return err
	}
	return b.inTurns(ctx, rowMemorySnapshot, b.rounds(30, 5), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			made, _, err := s.snapshotOf(ctx, id, "memory")
			took := elapsed(began)
			if err != nil {
				return took, err
			}
			return took, s.callWith(ctx, http.MethodDelete, "/v1/snapshots/"+made, nil, http.StatusNoContent, nil, nil)
		},
		floor: func(ctx context.Context) (float64, error) { return copyFiles(ctx, from, filepath.Join(copied, "to")) },
	})
}

func (b *bench) measureMemoryRollback(ctx context.Context, s *service, id string) error {
	snapshot, _, err := s.snapshotOf(ctx, id, "memory")
	if err != nil {
		return err
	}
	return b.inTurns(ctx, rowMemoryRollback, b.rounds(30, 5), sides{
		ours:  func(ctx context.Context) (float64, error) { return s.rollback(ctx, id, snapshot) },
		floor: s.createAndDelete,
	})
}
