package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// rememberedBytes is what a sandbox has in memory, beside its processes, before its snapshots.
const rememberedBytes = 64 << 20

// memorySnapshots has snapshots of the memory of a running sandbox of gVisor's, from the request until
// it is Ready, and rollbacks to one until a command has printed. The floors are a copy of as many
// bytes, on the same disk, and a cold create of the same sandbox.
func memorySnapshots() group {
	return sharing(withRemembered,
		one(row{name: "memory-snapshot", what: "snapshot of the memory of a running sandbox with runsc (gVisor) and 64 MiB in /dev/shm, until Ready",
			floor: "`cp -a` and `sync` of a file of 64 MiB",
			unit:  milliseconds, target: ours(100)},
			measureMemorySnapshots),
		one(row{name: "memory-rollback", what: "rollback of that sandbox to it: POST to the first output of a command",
			floor: "a cold create of the same sandbox",
			unit:  milliseconds, target: ours(250)},
			measureMemoryRollback))
}

// remembered is a service that has a sandbox with bytes in memory.
type remembered struct {
	*service
	id string // of the sandbox
}

func withRemembered(ctx context.Context, run *bench, do func(remembered) error) error {
	return onLocal("runsc", plan{})(ctx, run, func(with beside) error {
		id, daemon, err := with.usable(ctx)
		if err != nil {
			return err
		}
		if err := daemon.complete(ctx, fmt.Sprintf("head -c %d /dev/urandom >/dev/shm/remembered", rememberedBytes)); err != nil {
			return err
		}
		return do(remembered{with.service, id})
	})
}

func measureMemorySnapshots(ctx context.Context, run *bench, with remembered) (pair, error) {
	copied, err := run.directory("remembered")
	if err != nil {
		return pair{}, err
	}
	from := filepath.Join(copied, "from")
	if err := os.Mkdir(from, 0o755); err != nil { //nolint:gosec // of the bench
		return pair{}, err
	}
	if err := os.WriteFile(filepath.Join(from, "bytes"), make([]byte, rememberedBytes), 0o600); err != nil {
		return pair{}, err
	}
	return run.inTurns(ctx, run.rounds(30, 5), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			made, _, err := snapshotOf(ctx, with.service, with.id, "memory")
			took := elapsed(began)
			if err != nil {
				return took, err
			}
			return took, with.call(ctx, http.MethodDelete, "/v1/snapshots/"+made, http.StatusNoContent, nil, nil)
		},
		floor: func(ctx context.Context) (float64, error) { return copyFiles(ctx, from, filepath.Join(copied, "to")) },
	})
}

func measureMemoryRollback(ctx context.Context, run *bench, with remembered) (pair, error) {
	snapshot, _, err := snapshotOf(ctx, with.service, with.id, "memory")
	if err != nil {
		return pair{}, err
	}
	return run.inTurns(ctx, run.rounds(30, 5), sides{
		ours:  func(ctx context.Context) (float64, error) { return rollback(ctx, with.service, with.id, snapshot) },
		floor: with.timeToOutput,
	})
}
