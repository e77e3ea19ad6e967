package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// An agent's trajectory.
const (
	agentCommands = 100
	agentPackage  = 200 // files that a command unpacks
)

// measureTrajectory measures commands as an agent runs them, with a snapshot after each. The floor
// is the same in a sandbox without snapshots.
func measureTrajectory(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	count := run.Rounds(agentCommands, 10)
	side := func(after func(ctx context.Context, id string) error) measure.Figure {
		return func(ctx context.Context) (float64, error) {
			id, daemon, err := with.Usable(ctx)
			if err != nil {
				return 0, err
			}
			if err := daemon.Complete(ctx, agentPreparation()); err != nil {
				return 0, err
			}
			began := time.Now()
			for i := range count {
				if err := errors.Join(daemon.Complete(ctx, agentCommand(i)), after(ctx, id)); err != nil {
					return 0, fmt.Errorf("command %d: %w", i, err)
				}
			}
			took := measure.Elapsed(began)
			return took, errors.Join(with.Delete(ctx, id), deleteSnapshots(ctx, with.Service, id))
		}
	}
	return run.InTurns(ctx, run.Rounds(3, 1), measure.Sides{
		Ours: side(func(ctx context.Context, id string) error {
			_, _, err := snapshot(ctx, with.Service, id)
			return err
		}),
		Floor: side(func(context.Context, string) error { return nil }),
	})
}

// deleteSnapshots deletes the snapshots of a sandbox: a key may have a hundred.
func deleteSnapshots(ctx context.Context, s *rig.Service, id string) error {
	var page struct{ Items []struct{ ID string } }
	err := s.Call(ctx, http.MethodGet, "/v1/snapshots?pageSize=1000&sandboxId="+id, http.StatusOK, nil, &page)
	for _, snapshot := range page.Items {
		err = errors.Join(err, s.Call(ctx, http.MethodDelete, "/v1/snapshots/"+snapshot.ID, http.StatusNoContent, nil, nil))
	}
	return err
}

// agentPreparation makes a project of 200 files and a package that can be installed.
func agentPreparation() string {
	return fmt.Sprintf(`mkdir -p /project/src /index && cd /index && i=0 && while [ $i -lt %d ]; do echo "line $i" >f$i; i=$((i+1)); done &&
tar -cf /package.tar -C /index . && cp /index/* /project/src/`, agentPackage)
}

// agentCommand is one of the commands of an agent: it edits a file, runs the tests, looks for text,
// and now and then installs a package. Three of four change nothing.
func agentCommand(i int) string {
	const tests = `awk 'BEGIN { for (i = 0; i < 3000000; i++) s += i % 7; print s }'`
	switch i % 8 {
	case 0:
		return fmt.Sprintf("mkdir -p /project/lib%d && tar -xf /package.tar -C /project/lib%d && %s", i, i, tests)
	case 4:
		return fmt.Sprintf("cd /project && echo 'edit %d' >>src/f%d && %s", i, i%agentPackage, tests)
	case 2, 6:
		return "grep -r 'line 7' /project | wc -l"
	default:
		return tests
	}
}
