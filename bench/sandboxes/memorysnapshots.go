package sandboxes

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// rememberedBytes is what a sandbox has in memory, beside its processes, before its snapshots.
const rememberedBytes = 64 << 20

// MemorySnapshots has snapshots of the memory of a running sandbox of gVisor's, from the request
// until it is Ready, and rollbacks to one until a command has printed. The floors are a copy of as
// many bytes, on the same disk, and a cold create of the same sandbox.
func MemorySnapshots() measure.Group {
	return measure.Sharing(withRemembered,
		measure.Single(measure.Row{Name: "memory-snapshot", What: "snapshot of the memory of a running sandbox with runsc (gVisor) and 64 MiB in /dev/shm, until Ready",
			Floor: "`cp -a` and `sync` of a file of 64 MiB",
			Unit:  measure.Milliseconds, Target: measure.Ours(100)},
			measureMemorySnapshots),
		measure.Single(measure.Row{Name: "memory-rollback", What: "rollback of that sandbox to it: POST to the first output of a command",
			Floor: "a cold create of the same sandbox",
			Unit:  measure.Milliseconds, Target: measure.Ours(250)},
			measureMemoryRollback))
}

// remembered is a service that has a sandbox with bytes in memory.
type remembered struct {
	*rig.Service
	id string // of the sandbox
}

func withRemembered(ctx context.Context, run *measure.Run, do func(remembered) error) error {
	return rig.OnLocal("runsc", rig.Plan{})(ctx, run, func(with rig.Beside) error {
		id, daemon, err := with.Usable(ctx)
		if err != nil {
			return err
		}
		if err := daemon.Complete(ctx, fmt.Sprintf("head -c %d /dev/urandom >/dev/shm/remembered", rememberedBytes)); err != nil {
			return err
		}
		return do(remembered{with.Service, id})
	})
}

func measureMemorySnapshots(ctx context.Context, run *measure.Run, with remembered) (measure.Pair, error) {
	copied, err := run.Directory("remembered")
	if err != nil {
		return measure.Pair{}, err
	}
	from := filepath.Join(copied, "from")
	if err := os.Mkdir(from, 0o755); err != nil { //nolint:gosec // of the bench
		return measure.Pair{}, err
	}
	if err := os.WriteFile(filepath.Join(from, "bytes"), make([]byte, rememberedBytes), 0o600); err != nil {
		return measure.Pair{}, err
	}
	return run.InTurns(ctx, run.Rounds(30, 5), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			made, _, err := snapshotOf(ctx, with.Service, with.id, "memory")
			took := measure.Elapsed(began)
			if err != nil {
				return took, err
			}
			return took, with.Call(ctx, http.MethodDelete, "/v1/snapshots/"+made, http.StatusNoContent, nil, nil)
		},
		Floor: func(ctx context.Context) (float64, error) { return copyFiles(ctx, from, filepath.Join(copied, "to")) },
	})
}

func measureMemoryRollback(ctx context.Context, run *measure.Run, with remembered) (measure.Pair, error) {
	snapshot, _, err := snapshotOf(ctx, with.Service, with.id, "memory")
	if err != nil {
		return measure.Pair{}, err
	}
	return run.InTurns(ctx, run.Rounds(30, 5), measure.Sides{
		Ours:  func(ctx context.Context) (float64, error) { return rollback(ctx, with.Service, with.id, snapshot) },
		Floor: with.TimeToOutput,
	})
}
