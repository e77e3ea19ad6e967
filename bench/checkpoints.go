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
	forked         = 10  // sandboxes of one fork
	agentCommands  = 100 // of a trajectory
	agentPackage   = 200 // files that an agent's command unpacks
	manyFiles      = 10_000
	manyFilesBytes = 100 << 20
)

// dirtied is what a sandbox writes before each of its snapshots.
type dirtied struct {
	rows   []string // until it is Ready, and for how long its processes stood still
	files  int
	bytes  int
	rounds int
}

func (d dirtied) command() string {
	if d.files == 0 {
		return "true"
	}
	return fmt.Sprintf("rm -rf /dirty && mkdir /dirty && cd /dirty && head -c %d /dev/urandom | split -a 4 -b %d -", d.bytes, (d.bytes+d.files-1)/d.files)
}

// measureSnapshots measures snapshots of a running sandbox on the local engine, from the request
// until it is Ready. The floor is a copy of the files that have changed, on the same disk.
func (b *bench) measureSnapshots(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, _ *engine) error {
		for _, d := range []dirtied{
			{rows: []string{rowSnapshotClean}, rounds: b.rounds(100, 10)},
			{rows: []string{rowSnapshotSmall, rowSnapshotSmallFrozen}, files: 1, bytes: 1 << 20, rounds: b.rounds(100, 10)},
			{rows: []string{rowSnapshotLarge, rowSnapshotLargeFrozen}, files: manyFiles, bytes: manyFilesBytes, rounds: b.rounds(10, 2)},
		} {
			if !b.selectedAny(d.rows...) {
				continue
			}
			if err := b.measureSnapshotsOf(ctx, s, d); err != nil {
				return fmt.Errorf("%s: %w", d.rows[0], err)
			}
		}
		return nil
	})
}

func (b *bench) measureSnapshotsOf(ctx context.Context, s *service, d dirtied) error {
	id, daemon, err := s.usableWithID(ctx)
	if err != nil {
		return err
	}
	copied, err := b.directory("dirty")
	if err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, "sh", "-c", strings.ReplaceAll(d.command(), "/dirty", filepath.Join(copied, "from"))).Run(); err != nil {
		return fmt.Errorf("files of the floor: %w", err)
	}
	last, _, err := s.snapshot(ctx, id)
	if err != nil {
		return err
	}
	var frozen pair
	err = b.inTurns(ctx, d.rows[0], d.rounds, sides{
		ours: func(ctx context.Context) (float64, error) {
			if err := daemon.complete(ctx, d.command()); err != nil {
				return 0, err
			}
			began := time.Now()
			made, stood, err := s.snapshot(ctx, id)
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
	if err == nil && len(d.rows) > 1 {
		b.results[d.rows[1]] = frozen
	}
	return errors.Join(err, s.delete(ctx, id))
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
func (s *service) snapshot(ctx context.Context, id string) (snapshot string, frozen float64, err error) {
	return s.snapshotOf(ctx, id, "filesystem")
}

// snapshotOf is snapshot for one of a kind.
func (s *service) snapshotOf(ctx context.Context, id, kind string) (snapshot string, frozen float64, err error) {
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

// usableWithID is usable for a sandbox whose id is needed.
func (s *service) usableWithID(ctx context.Context) (string, execd, error) {
	id, err := s.create(ctx)
	if err != nil {
		return "", execd{}, err
	}
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	return id, daemon, err
}

// complete runs a command that must succeed to its end.
func (d execd) complete(ctx context.Context, command string) error {
	s, err := d.run(ctx, command)
	if err != nil {
		return err
	}
	if _, err := s.until(eventComplete); err != nil {
		s.abandon()
		return err
	}
	return s.finish()
}

// measureRollback measures a rollback of a sandbox that has written a MiB since, until a command
// has printed. The floor is a cold create.
func (b *bench) measureRollback(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, _ *engine) error {
		id, daemon, err := s.usableWithID(ctx)
		if err != nil {
			return err
		}
		change := dirtied{files: 1, bytes: 1 << 20}.command()
		if err := daemon.complete(ctx, change); err != nil {
			return err
		}
		snapshot, _, err := s.snapshot(ctx, id)
		if err != nil {
			return err
		}
		return b.inTurns(ctx, rowRollback, b.rounds(50, 10), sides{
			ours: func(ctx context.Context) (float64, error) {
				daemon, err := s.daemon(ctx, id)
				if err == nil {
					err = daemon.complete(ctx, change)
				}
				if err != nil {
					return 0, err
				}
				return s.rollback(ctx, id, snapshot)
			},
			floor: s.createAndDelete,
		})
	})
}

// rollback returns how long a rollback takes until a command in the sandbox has printed, in
// milliseconds.
func (s *service) rollback(ctx context.Context, id, snapshot string) (float64, error) {
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

// createAndDelete returns how long a create takes until a command in the sandbox has printed, in
// milliseconds.
func (s *service) createAndDelete(ctx context.Context) (float64, error) {
	began := time.Now()
	created, _, err := s.usableWithID(ctx)
	took := elapsed(began)
	return took, errors.Join(err, s.delete(ctx, created))
}

// measureFork measures a fork of a running sandbox until a command in each of the new ones has
// printed. The floor is as many creates at once.
func (b *bench) measureFork(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, _ *engine) error {
		id, daemon, err := s.usableWithID(ctx)
		if err != nil {
			return err
		}
		if err := daemon.complete(ctx, dirtied{files: 1, bytes: 1 << 20}.command()); err != nil {
			return err
		}
		end := func(ids []string) error {
			return concurrently(ctx, len(ids), func(ctx context.Context, i int) error { return s.delete(ctx, ids[i]) })
		}
		return b.inTurns(ctx, rowFork, b.rounds(20, 3), sides{
			ours: func(ctx context.Context) (float64, error) {
				began := time.Now()
				ids, err := s.fork(ctx, id, forked)
				took := elapsed(began)
				return took, errors.Join(err, end(ids))
			},
			floor: func(ctx context.Context) (float64, error) {
				began := time.Now()
				ids := make([]string, forked)
				err := concurrently(ctx, forked, func(ctx context.Context, i int) (err error) {
					ids[i], _, err = s.usableWithID(ctx)
					return err
				})
				took := elapsed(began)
				return took, errors.Join(err, end(ids))
			},
		})
	})
}

// fork returns the ids of sandboxes that begin with the files of another one, once a command in
// each has printed.
func (s *service) fork(ctx context.Context, id string, count int) ([]string, error) {
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

// measureTrajectory measures commands as an agent runs them, with a snapshot after each. The floor
// is the same in a sandbox without snapshots.
func (b *bench) measureTrajectory(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, _ *engine) error {
		count := b.rounds(agentCommands, 10)
		run := func(after func(ctx context.Context, id string) error) func(context.Context) (float64, error) {
			return func(ctx context.Context) (float64, error) {
				id, daemon, err := s.usableWithID(ctx)
				if err != nil {
					return 0, err
				}
				if err := daemon.complete(ctx, agentPreparation()); err != nil {
					return 0, err
				}
				began := time.Now()
				for i := range count {
					if err := errors.Join(daemon.complete(ctx, agentCommand(i)), after(ctx, id)); err != nil {
						return 0, fmt.Errorf("command %d: %w", i, err)
					}
				}
				took := elapsed(began)
				return took, errors.Join(s.delete(ctx, id), s.deleteSnapshots(ctx, id))
			}
		}
		return b.inTurns(ctx, rowTrajectory, b.rounds(3, 1), sides{
			ours: run(func(ctx context.Context, id string) error {
				_, _, err := s.snapshot(ctx, id)
				return err
			}),
			floor: run(func(context.Context, string) error { return nil }),
		})
	})
}

// deleteSnapshots deletes the snapshots of a sandbox: a key may have a hundred.
func (s *service) deleteSnapshots(ctx context.Context, id string) error {
	var page struct{ Items []struct{ ID string } }
	err := s.call(ctx, http.MethodGet, "/v1/snapshots?pageSize=1000&sandboxId="+id, http.StatusOK, nil, &page)
	for _, snapshot := range page.Items {
		err = errors.Join(err, s.call(ctx, http.MethodDelete, "/v1/snapshots/"+snapshot.ID, http.StatusNoContent, nil, nil))
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
