package main

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

// snapshots has snapshots of a running sandbox on the local engine, what they cost it, rollbacks to
// them and forks.
func snapshots() []group {
	local := onLocal("crun", plan{})
	return []group{
		sharing(local,
			one(row{name: "snapshot-clean", what: "snapshot of a running sandbox that has written nothing since the last one, until Ready",
				floor: "`cp -a` and `sync` of an empty directory",
				unit:  milliseconds, target: ours(5)},
				func(ctx context.Context, run *bench, with beside) (pair, error) {
					ready, _, err := dirtied{full: 100, quick: 10}.measure(ctx, run, with.service)
					return ready, err
				}),
			part[beside]{[]row{
				row{name: "snapshot-1mib", what: "the same with 1 MiB written since",
					floor: "`cp -a` and `sync` of the same file",
					unit:  milliseconds, target: ours(20)},
				row{name: "snapshot-1mib-frozen", what: "for how long the sandbox's processes stand still for it",
					floor: "`cp -a` and `sync` of the same file",
					unit:  milliseconds, target: ours(5)},
			}, oneMiB.measureBoth},
			part[beside]{[]row{
				row{name: "snapshot-10000", what: "snapshot with 100 MiB in 10 000 files written since, until Ready",
					floor: "`cp -a` and `sync` of the same files",
					unit:  milliseconds, target: ours(200)},
				row{name: "snapshot-10000-frozen", what: "for how long the sandbox's processes stand still for it",
					floor: "`cp -a` and `sync` of the same files",
					unit:  milliseconds, target: ours(10)},
			}, dirtied{files: manyFiles, bytes: manyFilesBytes, full: 10, quick: 2}.measureBoth}),
		sharing(local, one(row{name: "rollback", what: "rollback of a running sandbox: POST to the first output of a command",
			floor: "a cold create of the same sandbox",
			unit:  milliseconds, target: ours(25)},
			measureRollback)),
		sharing(local, one(row{name: "fork-10", what: "fork of a running sandbox into ten: POST until a command in each has printed",
			floor: "ten cold creates at once",
			unit:  milliseconds, target: ours(300)},
			measureFork)),
		sharing(local, one(row{name: "trajectory-100", what: "100 commands of an agent (edits, tests of 0.1 s, searches, packages), a snapshot after each",
			floor: "the same in a sandbox without snapshots",
			unit:  milliseconds, target: ratio(1.05)},
			measureTrajectory)),
	}
}

func (d dirtied) measureBoth(ctx context.Context, run *bench, with beside) ([]pair, error) {
	ready, frozen, err := d.measure(ctx, run, with.service)
	return []pair{ready, frozen}, err
}

// measure measures snapshots from the request until each is Ready, and for how long the processes of
// the sandbox stood still. The floor is a copy of the files that have changed, on the same disk.
func (d dirtied) measure(ctx context.Context, run *bench, s *service) (ready, frozen pair, err error) {
	id, daemon, err := s.usable(ctx)
	if err != nil {
		return ready, frozen, err
	}
	copied, err := run.directory("dirty")
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
	ready, err = run.inTurns(ctx, run.rounds(d.full, d.quick), sides{
		ours: func(ctx context.Context) (float64, error) {
			if err := daemon.complete(ctx, d.command()); err != nil {
				return 0, err
			}
			began := time.Now()
			made, stood, err := snapshot(ctx, s, id)
			took := elapsed(began)
			if err != nil {
				return 0, err
			}
			frozen.ours.add(stood)
			err = s.call(ctx, http.MethodDelete, "/v1/snapshots/"+last, http.StatusNoContent, nil, nil)
			last = made
			return took, err
		},
		floor: func(ctx context.Context) (float64, error) {
			took, err := copyFiles(ctx, filepath.Join(copied, "from"), filepath.Join(copied, "to"))
			frozen.floor.add(took)
			return took, err
		},
	})
	return ready, frozen, errors.Join(err, s.delete(ctx, id))
}

// copyFiles returns how long a copy of a directory takes until it is on the disk, in milliseconds,
// and removes the copy. There need not be such a directory.
func copyFiles(ctx context.Context, from, to string) (float64, error) {
	if err := os.MkdirAll(from, 0o755); err != nil { //nolint:gosec // of the bench
		return 0, err
	}
	began := time.Now()
	err := exec.CommandContext(ctx, "sh", "-c", `cp -a "$0" "$1" && sync -f "$1"`, from, to).Run()
	return elapsed(began), errors.Join(err, os.RemoveAll(to))
}

// snapshot returns the id of a new snapshot of the sandbox that is Ready, and for how long the
// sandbox's processes stood still, in milliseconds.
func snapshot(ctx context.Context, s *service, id string) (snapshot string, frozen float64, err error) {
	return snapshotOf(ctx, s, id, "filesystem")
}

// snapshotOf is snapshot for one of a kind.
func snapshotOf(ctx context.Context, s *service, id, kind string) (snapshot string, frozen float64, err error) {
	var made struct {
		ID       string
		FreezeMs float64
		Status   status
	}
	header := http.Header{"Prefer": {"wait=60"}}
	err = s.callWith(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/snapshots", header, http.StatusAccepted, map[string]any{"kind": kind}, &made)
	if err == nil && made.Status.State != "Ready" {
		err = fmt.Errorf("snapshot %s is %s", made.ID, made.Status.State)
	}
	return made.ID, made.FreezeMs, err
}

// measureRollback measures a rollback of a sandbox that has written a MiB since, until a command
// has printed. The floor is a cold create.
func measureRollback(ctx context.Context, run *bench, with beside) (pair, error) {
	id, daemon, err := with.usable(ctx)
	if err != nil {
		return pair{}, err
	}
	change := oneMiB.command()
	if err := daemon.complete(ctx, change); err != nil {
		return pair{}, err
	}
	made, _, err := snapshot(ctx, with.service, id)
	if err != nil {
		return pair{}, err
	}
	return run.inTurns(ctx, run.rounds(50, 10), sides{
		ours: func(ctx context.Context) (float64, error) {
			daemon, err := with.daemon(ctx, id)
			if err == nil {
				err = daemon.complete(ctx, change)
			}
			if err != nil {
				return 0, err
			}
			return rollback(ctx, with.service, id, made)
		},
		floor: with.timeToOutput,
	})
}

// rollback returns how long a rollback takes until a command in the sandbox has printed, in
// milliseconds.
func rollback(ctx context.Context, s *service, id, snapshot string) (float64, error) {
	began := time.Now()
	err := s.callWith(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/rollback", http.Header{"Prefer": {"wait=60"}}, http.StatusAccepted,
		map[string]string{"snapshotId": snapshot}, nil)
	if err != nil {
		return 0, err
	}
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	return elapsed(began), err
}

// measureFork measures a fork of a running sandbox until a command in each of the new ones has
// printed. The floor is as many creates at once.
func measureFork(ctx context.Context, run *bench, with beside) (pair, error) {
	id, daemon, err := with.usable(ctx)
	if err != nil {
		return pair{}, err
	}
	if err := daemon.complete(ctx, oneMiB.command()); err != nil {
		return pair{}, err
	}
	end := func(ids []string) error {
		return concurrently(ctx, len(ids), func(ctx context.Context, i int) error { return with.delete(ctx, ids[i]) })
	}
	return run.inTurns(ctx, run.rounds(20, 3), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			ids, err := fork(ctx, with.service, id, forked)
			took := elapsed(began)
			return took, errors.Join(err, end(ids))
		},
		floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			ids := make([]string, forked)
			err := concurrently(ctx, forked, func(ctx context.Context, i int) (err error) {
				ids[i], _, err = with.usable(ctx)
				return err
			})
			took := elapsed(began)
			return took, errors.Join(err, end(ids))
		},
	})
}

// fork returns the ids of sandboxes that begin with the files of another one, once a command in
// each has printed.
func fork(ctx context.Context, s *service, id string, count int) ([]string, error) {
	var made struct {
		Items []struct {
			Sandbox struct{ ID string }
			Error   struct{ Message string }
		}
	}
	err := s.call(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/fork", http.StatusAccepted, map[string]int{"count": count}, &made)
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
		return ids, fmt.Errorf("%w: %d of %d forks", errLost, len(ids), count)
	}
	return ids, concurrently(ctx, count, func(ctx context.Context, i int) error {
		daemon, err := s.daemon(ctx, ids[i])
		if err != nil {
			return err
		}
		return daemon.firstOutput(ctx)
	})
}
