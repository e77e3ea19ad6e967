package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"
)

const (
	// settledAfter is how long after a burst the memory of execd is to be small again.
	settledAfter = 10 * time.Second
	// openStreams is how many streams the row with open streams has.
	openStreams = 1000
)

// memory has the start of execd, and the resident memory of fresh servers under a load, each in a
// process of its own.
func memory() []group {
	return []group{
		alone(row{name: "start", what: "start of execd: exec to its first answer",
			floor: "the same of a minimal net/http program",
			unit:  milliseconds, target: ours(6)},
			measureStart),
		alone(row{name: "rss-idle", what: "resident memory of execd, idle",
			floor: "a minimal net/http program, idle",
			unit:  mebibytes, target: ours(12)},
			func(ctx context.Context, run *bench) (pair, error) {
				return measureMemory(ctx, run, run.rounds(5, 2), serverLoad{
					ours:  func(context.Context, execd) (func(), error) { return nothing, nil },
					floor: func(context.Context, *process) (func(), error) { return nothing, nil },
				})
			}),
		alone(row{name: "rss-streams", what: "resident memory of execd, with 1000 commands running and streamed",
			floor: "a minimal net/http program with 1000 open responses",
			unit:  mebibytes, target: ours(45)},
			measureOpenStreams),
		alone(row{name: "rss-upload", what: "resident memory of execd, after an upload",
			floor: "a minimal net/http program after a raw upload of the same size",
			unit:  mebibytes, target: ours(25)},
			measureAfterUpload),
		alone(row{name: "rss-after", what: "resident memory of execd, 10 s after 1000 streams and an upload",
			floor: "a minimal net/http program, likewise",
			unit:  mebibytes, target: ours(16)},
			measureAfterBurst),
	}
}

// serverLoad is what a fresh server is put under before its memory is read. What it returns undoes
// it.
type serverLoad struct {
	ours  func(context.Context, execd) (undo func(), err error)
	floor func(context.Context, *process) (undo func(), err error)
}

func measureMemory(ctx context.Context, run *bench, rounds int, l serverLoad) (pair, error) {
	return run.inTurns(ctx, rounds, sides{
		ours: func(ctx context.Context) (float64, error) {
			p, daemon, err := startExecd(ctx, run)
			if err != nil {
				return 0, err
			}
			defer p.stop()
			undo, err := l.ours(ctx, daemon)
			defer undo()
			if err != nil {
				return 0, err
			}
			return p.atRest(ctx)
		},
		floor: func(ctx context.Context) (float64, error) {
			p, err := startFloor(ctx, run)
			if err != nil {
				return 0, err
			}
			defer p.stop()
			undo, err := l.floor(ctx, p)
			defer undo()
			if err != nil {
				return 0, err
			}
			return p.atRest(ctx)
		},
	})
}

// measureAfterBurst opens a thousand streams, ends them and uploads a file, and reads the memory
// some time later.
func measureAfterBurst(ctx context.Context, run *bench) (pair, error) {
	dir, err := run.directory("burst")
	if err != nil {
		return pair{}, err
	}
	c := newContent(run.bytes(transferSize))
	after := func(ctx context.Context, err error) (func(), error) {
		if err != nil {
			return nothing, err
		}
		return nothing, pause(ctx, settledAfter)
	}
	return measureMemory(ctx, run, run.rounds(2, 1), serverLoad{
		ours: func(ctx context.Context, daemon execd) (func(), error) {
			var ids []string
			closeAll, err := openAll(ctx, func(ctx context.Context) error {
				s, err := daemon.running(ctx)
				if err == nil {
					ids = append(ids, s.id)
				}
				return err
			})
			for _, id := range ids {
				err = errors.Join(err, daemon.interrupt(ctx, id))
			}
			closeAll()
			if err == nil {
				err = c.uploadTo(ctx, daemon, filepath.Join(dir, "uploaded"))
			}
			return after(ctx, err)
		},
		floor: func(ctx context.Context, floor *process) (func(), error) {
			closeAll, err := openAll(ctx, floorStream(floor))
			closeAll()
			if err == nil {
				err = c.uploadToFloor(ctx, floor)
			}
			return after(ctx, err)
		},
	})
}

// measureStart starts servers.
func measureStart(ctx context.Context, run *bench) (pair, error) {
	took := func(p *process, err error) (float64, error) {
		if err != nil {
			return 0, err
		}
		defer p.stop()
		return float64(p.took) / float64(time.Millisecond), nil
	}
	return run.inTurns(ctx, run.rounds(50, 10), sides{
		ours: func(ctx context.Context) (float64, error) {
			p, _, err := startExecd(ctx, run)
			return took(p, err)
		},
		floor: func(ctx context.Context) (float64, error) { return took(startFloor(ctx, run)) },
	})
}

func nothing() {}

func measureAfterUpload(ctx context.Context, run *bench) (pair, error) {
	dir, err := run.directory("upload")
	if err != nil {
		return pair{}, err
	}
	c := newContent(run.bytes(transferSize))
	return measureMemory(ctx, run, run.rounds(3, 1), serverLoad{
		ours: func(ctx context.Context, daemon execd) (func(), error) {
			return nothing, c.uploadTo(ctx, daemon, filepath.Join(dir, "uploaded"))
		},
		floor: func(ctx context.Context, floor *process) (func(), error) {
			return nothing, c.uploadToFloor(ctx, floor)
		},
	})
}

// measureOpenStreams opens a thousand streams. On our side each belongs to a command of its own
// that is running, which costs the daemon a process to watch, two pipes and a log beside the
// connection.
func measureOpenStreams(ctx context.Context, run *bench) (pair, error) {
	return measureMemory(ctx, run, run.rounds(2, 1), serverLoad{
		ours: func(ctx context.Context, daemon execd) (func(), error) {
			return openAll(ctx, func(ctx context.Context) error {
				_, err := daemon.running(ctx)
				return err
			})
		},
		floor: func(ctx context.Context, floor *process) (func(), error) {
			return openAll(ctx, floorStream(floor))
		},
	})
}

// running is the stream of a command that runs.
func (d execd) running(ctx context.Context) (*stream, error) {
	s, err := d.run(ctx, "exec sleep 600")
	if err == nil {
		_, err = s.until(eventInit)
	}
	return s, err
}

// floorStream opens a response of the floor that goes on.
func floorStream(floor *process) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := floor.get(ctx, "/stream")
		return err
	}
}

func openAll(ctx context.Context, open func(context.Context) error) (closeAll func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	for range openStreams {
		if err := open(ctx); err != nil {
			return cancel, err
		}
	}
	return cancel, nil
}
