package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// What the rows of snapshots do.
const (
	forked         = 10 // sandboxes of one fork
	manyFiles      = 10_000
	manyFilesBytes = 100 << 20
)

// dirtied is what a sandbox writes before each of its snapshots, and in how many rounds.
type dirtied struct {
	files, bytes int
	full, quick  int // rounds
}

// oneMiB is a file of that size.
var oneMiB = dirtied{files: 1, bytes: 1 << 20, full: 100, quick: 10}

func (d dirtied) command() string {
	if d.files == 0 {
		return "true"
	}
	return fmt.Sprintf("rm -rf /dirty && mkdir /dirty && cd /dirty && head -c %d /dev/urandom | split -a 4 -b %d -", d.bytes, (d.bytes+d.files-1)/d.files)
}

// Snapshots has snapshots of a running sandbox on the local engine, what they cost it, rollbacks to
// them and forks.
func Snapshots() []measure.Group {
	local := rig.OnLocal("crun", rig.Plan{})
	return []measure.Group{
		measure.Sharing(local,
			measure.Single(measure.Row{Name: "snapshot-clean", What: "snapshot of a running sandbox that has written nothing since the last one, until Ready",
				Floor: "`cp -a` and `sync` of an empty directory",
				Unit:  measure.Milliseconds, Target: measure.Ours(5)},
				func(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
					ready, _, err := dirtied{full: 100, quick: 10}.measure(ctx, run, with.Service)
					return ready, err
				}),
			measure.Several([]measure.Row{
				measure.Row{Name: "snapshot-1mib", What: "the same with 1 MiB written since",
					Floor: "`cp -a` and `sync` of the same file",
					Unit:  measure.Milliseconds, Target: measure.Ours(20)},
				measure.Row{Name: "snapshot-1mib-frozen", What: "for how long the sandbox's processes stand still for it",
					Floor: "`cp -a` and `sync` of the same file",
					Unit:  measure.Milliseconds, Target: measure.Ours(5)},
			}, oneMiB.measureBoth),
			measure.Several([]measure.Row{
				measure.Row{Name: "snapshot-10000", What: "snapshot with 100 MiB in 10 000 files written since, until Ready",
					Floor: "`cp -a` and `sync` of the same files",
					Unit:  measure.Milliseconds, Target: measure.Ours(200)},
				measure.Row{Name: "snapshot-10000-frozen", What: "for how long the sandbox's processes stand still for it",
					Floor: "`cp -a` and `sync` of the same files",
					Unit:  measure.Milliseconds, Target: measure.Ours(10)},
			}, dirtied{files: manyFiles, bytes: manyFilesBytes, full: 10, quick: 2}.measureBoth)),
		measure.Sharing(local, measure.Single(measure.Row{Name: "rollback", What: "rollback of a running sandbox: POST to the first output of a command",
			Floor: "a cold create of the same sandbox",
			Unit:  measure.Milliseconds, Target: measure.Ours(25)},
			measureRollback)),
		measure.Sharing(local, measure.Single(measure.Row{Name: "fork-10", What: "fork of a running sandbox into ten: POST until a command in each has printed",
			Floor: "ten cold creates at once",
			Unit:  measure.Milliseconds, Target: measure.Ours(300)},
			measureFork)),
		measure.Sharing(local, measure.Single(measure.Row{Name: "trajectory-100", What: "100 commands of an agent (edits, tests of 0.1 s, searches, packages), a snapshot after each",
			Floor: "the same in a sandbox without snapshots",
			Unit:  measure.Milliseconds, Target: measure.Ratio(1.05)},
			measureTrajectory)),
	}
}

func (d dirtied) measureBoth(ctx context.Context, run *measure.Run, with rig.Beside) ([]measure.Pair, error) {
	ready, frozen, err := d.measure(ctx, run, with.Service)
	return []measure.Pair{ready, frozen}, err
}

// measure measures snapshots from the request until each is Ready, and for how long the processes
// of the sandbox stood still. The floor is a copy of the files that have changed, on the same disk.
func (d dirtied) measure(ctx context.Context, run *measure.Run, s *rig.Service) (ready, frozen measure.Pair, err error) {
	id, daemon, err := s.Usable(ctx)
	if err != nil {
		return ready, frozen, err
	}
	copied, err := run.Directory("dirty")
	if err != nil {
		return ready, frozen, err
	}
	if err := exec.CommandContext(ctx, "sh", "-c", strings.ReplaceAll(d.command(), "/dirty", filepath.Join(copied, "from"))).Run(); err != nil {
		return ready, frozen, fmt.Errorf("files of the floor: %w", err)
	}
	last, _, err := snapshot(ctx, s, id)
	if err != nil {
		return ready, frozen, err
	}
	ready, err = run.InTurns(ctx, run.Rounds(d.full, d.quick), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			if err := daemon.Complete(ctx, d.command()); err != nil {
				return 0, err
			}
			began := time.Now()
			made, stood, err := snapshot(ctx, s, id)
			took := measure.Elapsed(began)
			if err != nil {
				return 0, err
			}
			frozen.Ours.Add(stood)
			err = s.Call(ctx, http.MethodDelete, "/v1/snapshots/"+last, http.StatusNoContent, nil, nil)
			last = made
			return took, err
		},
		Floor: func(ctx context.Context) (float64, error) {
			took, err := copyFiles(ctx, filepath.Join(copied, "from"), filepath.Join(copied, "to"))
			frozen.Floor.Add(took)
			return took, err
		},
	})
	return ready, frozen, errors.Join(err, s.Delete(ctx, id))
}

// copyFiles returns how long a copy of a directory takes until it is on the disk, in milliseconds,
// and removes the copy. There need not be such a directory.
func copyFiles(ctx context.Context, from, to string) (float64, error) {
	if err := os.MkdirAll(from, 0o755); err != nil { //nolint:gosec // of the bench
		return 0, err
	}
	began := time.Now()
	err := exec.CommandContext(ctx, "sh", "-c", `cp -a "$0" "$1" && sync -f "$1"`, from, to).Run()
	return measure.Elapsed(began), errors.Join(err, os.RemoveAll(to))
}

// snapshot returns the id of a new snapshot of the sandbox that is Ready, and for how long the
// sandbox's processes stood still, in milliseconds.
func snapshot(ctx context.Context, s *rig.Service, id string) (snapshot string, frozen float64, err error) {
	return snapshotOf(ctx, s, id, "filesystem")
}

// snapshotOf is snapshot for one of a kind.
func snapshotOf(ctx context.Context, s *rig.Service, id, kind string) (snapshot string, frozen float64, err error) {
	var made struct {
		ID       string
		FreezeMs float64
		Status   rig.Status
	}
	header := http.Header{"Prefer": {"wait=60"}}
	err = s.CallWith(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", header, http.StatusAccepted, map[string]any{"kind": kind}, &made)
	if err == nil && made.Status.State != "Ready" {
		err = fmt.Errorf("snapshot %s is %s", made.ID, made.Status.State)
	}
	return made.ID, made.FreezeMs, err
}

// measureRollback measures a rollback of a sandbox that has written a MiB since, until a command
// has printed. The floor is a cold create.
func measureRollback(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	id, daemon, err := with.Usable(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	change := oneMiB.command()
	if err := daemon.Complete(ctx, change); err != nil {
		return measure.Pair{}, err
	}
	made, _, err := snapshot(ctx, with.Service, id)
	if err != nil {
		return measure.Pair{}, err
	}
	return run.InTurns(ctx, run.Rounds(50, 10), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			daemon, err := with.Daemon(ctx, id)
			if err == nil {
				err = daemon.Complete(ctx, change)
			}
			if err != nil {
				return 0, err
			}
			return rollback(ctx, with.Service, id, made)
		},
		Floor: with.TimeToOutput,
	})
}

// rollback returns how long a rollback takes until a command in the sandbox has printed, in
// milliseconds.
func rollback(ctx context.Context, s *rig.Service, id, snapshot string) (float64, error) {
	began := time.Now()
	err := s.CallWith(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/rollback", http.Header{"Prefer": {"wait=60"}}, http.StatusAccepted,
		map[string]string{"snapshotId": snapshot}, nil)
	if err != nil {
		return 0, err
	}
	daemon, err := s.Daemon(ctx, id)
	if err == nil {
		err = daemon.FirstOutput(ctx)
	}
	return measure.Elapsed(began), err
}

// measureFork measures a fork of a running sandbox until a command in each of the new ones has
// printed. The floor is as many creates at once.
func measureFork(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	id, daemon, err := with.Usable(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	if err := daemon.Complete(ctx, oneMiB.command()); err != nil {
		return measure.Pair{}, err
	}
	end := func(ids []string) error {
		return measure.Concurrently(ctx, len(ids), func(ctx context.Context, i int) error { return with.Delete(ctx, ids[i]) })
	}
	return run.InTurns(ctx, run.Rounds(20, 3), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			ids, err := fork(ctx, with.Service, id, forked)
			took := measure.Elapsed(began)
			return took, errors.Join(err, end(ids))
		},
		Floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			ids := make([]string, forked)
			err := measure.Concurrently(ctx, forked, func(ctx context.Context, i int) (err error) {
				ids[i], _, err = with.Usable(ctx)
				return err
			})
			took := measure.Elapsed(began)
			return took, errors.Join(err, end(ids))
		},
	})
}

// fork returns the ids of sandboxes that begin with the files of another one, once a command in
// each has printed.
func fork(ctx context.Context, s *rig.Service, id string, count int) ([]string, error) {
	var made struct {
		Items []struct {
			Sandbox struct{ ID string }
			Error   struct{ Message string }
		}
	}
	err := s.Call(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/fork", http.StatusAccepted, map[string]int{"count": count}, &made)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, item := range made.Items {
		if item.Sandbox.ID == "" {
			return ids, fmt.Errorf("a fork failed: %s", item.Error.Message)
		}
		ids = append(ids, item.Sandbox.ID)
	}
	if len(ids) != count {
		return ids, fmt.Errorf("%w: %d of %d forks", measure.ErrLost, len(ids), count)
	}
	return ids, measure.Concurrently(ctx, count, func(ctx context.Context, i int) error {
		daemon, err := s.Daemon(ctx, ids[i])
		if err != nil {
			return err
		}
		return daemon.FirstOutput(ctx)
	})
}
