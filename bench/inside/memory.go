package inside

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const (
	// settledAfter is how long after a burst the memory of execd is to be small again.
	settledAfter = 10 * time.Second
	// openStreams is how many streams the row with open streams has.
	openStreams = 1000
)

// Memory has the start of execd, and the resident memory of fresh servers under a load, each in a
// process of its own.
func Memory() []measure.Group {
	return []measure.Group{
		measure.Alone(measure.Row{Name: "start", What: "start of execd: exec to its first answer",
			Floor: "the same of a minimal net/http program",
			Unit:  measure.Milliseconds, Target: measure.Ours(6)},
			measureStart),
		measure.Alone(measure.Row{Name: "rss-idle", What: "resident memory of execd, idle",
			Floor: "a minimal net/http program, idle",
			Unit:  measure.Mebibytes, Target: measure.Ours(12)},
			func(ctx context.Context, run *measure.Run) (measure.Pair, error) {
				return measureMemory(ctx, run, run.Rounds(5, 2), serverLoad{
					ours:  func(context.Context, rig.Execd) (func(), error) { return nothing, nil },
					floor: func(context.Context, *rig.Process) (func(), error) { return nothing, nil },
				})
			}),
		measure.Alone(measure.Row{Name: "rss-streams", What: "resident memory of execd, with 1000 commands running and streamed",
			Floor: "a minimal net/http program with 1000 open responses",
			Unit:  measure.Mebibytes, Target: measure.Ours(45)},
			measureOpenStreams),
		measure.Alone(measure.Row{Name: "rss-upload", What: "resident memory of execd, after an upload",
			Floor: "a minimal net/http program after a raw upload of the same size",
			Unit:  measure.Mebibytes, Target: measure.Ours(25)},
			measureAfterUpload),
		measure.Alone(measure.Row{Name: "rss-after", What: "resident memory of execd, 10 s after 1000 streams and an upload",
			Floor: "a minimal net/http program, likewise",
			Unit:  measure.Mebibytes, Target: measure.Ours(16)},
			measureAfterBurst),
	}
}

// serverLoad is what a fresh server is put under before its memory is read. What it returns undoes
// it.
type serverLoad struct {
	ours  func(context.Context, rig.Execd) (undo func(), err error)
	floor func(context.Context, *rig.Process) (undo func(), err error)
}

func measureMemory(ctx context.Context, run *measure.Run, rounds int, l serverLoad) (measure.Pair, error) {
	return run.InTurns(ctx, rounds, measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			p, daemon, err := rig.StartExecd(ctx, run)
			if err != nil {
				return 0, err
			}
			defer p.Stop()
			undo, err := l.ours(ctx, daemon)
			defer undo()
			if err != nil {
				return 0, err
			}
			return p.AtRest(ctx)
		},
		Floor: func(ctx context.Context) (float64, error) {
			p, err := rig.StartFloor(ctx, run)
			if err != nil {
				return 0, err
			}
			defer p.Stop()
			undo, err := l.floor(ctx, p)
			defer undo()
			if err != nil {
				return 0, err
			}
			return p.AtRest(ctx)
		},
	})
}

// measureAfterBurst opens a thousand streams, ends them and uploads a file, and reads the memory
// some time later.
func measureAfterBurst(ctx context.Context, run *measure.Run) (measure.Pair, error) {
	dir, err := run.Directory("burst")
	if err != nil {
		return measure.Pair{}, err
	}
	c := rig.NewContent(run.Bytes(transferSize))
	after := func(ctx context.Context, err error) (func(), error) {
		if err != nil {
			return nothing, err
		}
		return nothing, measure.Pause(ctx, settledAfter)
	}
	return measureMemory(ctx, run, run.Rounds(2, 1), serverLoad{
		ours: func(ctx context.Context, daemon rig.Execd) (func(), error) {
			var ids []string
			closeAll, err := openAll(ctx, func(ctx context.Context) error {
				s, err := running(ctx, daemon)
				if err == nil {
					ids = append(ids, s.ID)
				}
				return err
			})
			for _, id := range ids {
				err = errors.Join(err, daemon.Interrupt(ctx, id))
			}
			closeAll()
			if err == nil {
				err = c.UploadTo(ctx, daemon, filepath.Join(dir, "uploaded"))
			}
			return after(ctx, err)
		},
		floor: func(ctx context.Context, floor *rig.Process) (func(), error) {
			closeAll, err := openAll(ctx, floorStream(floor))
			closeAll()
			if err == nil {
				err = c.UploadToFloor(ctx, floor)
			}
			return after(ctx, err)
		},
	})
}

// measureStart starts servers.
func measureStart(ctx context.Context, run *measure.Run) (measure.Pair, error) {
	took := func(p *rig.Process, err error) (float64, error) {
		if err != nil {
			return 0, err
		}
		defer p.Stop()
		return float64(p.Took) / float64(time.Millisecond), nil
	}
	return run.InTurns(ctx, run.Rounds(50, 10), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			p, _, err := rig.StartExecd(ctx, run)
			return took(p, err)
		},
		Floor: func(ctx context.Context) (float64, error) { return took(rig.StartFloor(ctx, run)) },
	})
}

func nothing() {}

func measureAfterUpload(ctx context.Context, run *measure.Run) (measure.Pair, error) {
	dir, err := run.Directory("upload")
	if err != nil {
		return measure.Pair{}, err
	}
	c := rig.NewContent(run.Bytes(transferSize))
	return measureMemory(ctx, run, run.Rounds(3, 1), serverLoad{
		ours: func(ctx context.Context, daemon rig.Execd) (func(), error) {
			return nothing, c.UploadTo(ctx, daemon, filepath.Join(dir, "uploaded"))
		},
		floor: func(ctx context.Context, floor *rig.Process) (func(), error) {
			return nothing, c.UploadToFloor(ctx, floor)
		},
	})
}

// measureOpenStreams opens a thousand streams. On our side each belongs to a command of its own
// that is running, which costs the daemon a process to watch, two pipes and a log beside the
// connection.
func measureOpenStreams(ctx context.Context, run *measure.Run) (measure.Pair, error) {
	return measureMemory(ctx, run, run.Rounds(2, 1), serverLoad{
		ours: func(ctx context.Context, daemon rig.Execd) (func(), error) {
			return openAll(ctx, func(ctx context.Context) error {
				_, err := running(ctx, daemon)
				return err
			})
		},
		floor: func(ctx context.Context, floor *rig.Process) (func(), error) {
			return openAll(ctx, floorStream(floor))
		},
	})
}

// running is the stream of a command that runs.
func running(ctx context.Context, d rig.Execd) (*rig.Stream, error) {
	s, err := d.Run(ctx, "exec sleep 600")
	if err == nil {
		_, err = s.Until(rig.EventInit)
	}
	return s, err
}

// floorStream opens a response of the floor that goes on.
func floorStream(floor *rig.Process) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := floor.Get(ctx, "/stream")
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
