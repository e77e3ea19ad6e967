package sandboxes

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// crowd is how many sandboxes are asked for at once.
const crowd = 200

// ManyAtOnce has many sandboxes that are asked for at once, the memory of the service when they
// run, and its start after it was killed then. Each sandbox must come to Running or to a Failed
// that says why; none may be lost or left.
func ManyAtOnce() measure.Group {
	return measure.Sharing(rig.OnDocker(""), measure.Several([]measure.Row{
		measure.Row{Name: "creates-200", What: "200 creates at once: from the first request until each runs",
			Floor: "the engine's create and start of as many, 16 at once",
			Unit:  measure.Milliseconds, Target: measure.Ratio(1.25)},
		measure.Row{Name: "rss-service", What: "resident memory of the service, with these 200 running",
			Floor: "a minimal net/http program, idle",
			Unit:  measure.Mebibytes, Target: measure.Ours(150)},
		measure.Row{Name: "restart-200", What: "SIGKILL of the service with these 200: from its start until all are listed and one runs a command",
			Floor: "a minimal server's start, and the engine asked for the state of each",
			Unit:  measure.Milliseconds, Target: measure.Ours(2000)},
	}, measureCrowd))
}

func measureCrowd(ctx context.Context, run *measure.Run, with rig.Beside) ([]measure.Pair, error) {
	count := run.Rounds(crowd, 20)
	var created, memory, restart measure.Pair
	for i := range run.Rounds(2, 1) {
		took, err := with.Engine.LaunchMany(ctx, count)
		if err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		created.Floor.AddBurst(measure.Burst{Values: took, Attempts: count})
		if err := with.Engine.Clean(ctx, rig.Label); err != nil {
			return nil, err
		}
		made, err := with.CreateMany(ctx, run, count)
		if err != nil {
			return nil, err
		}
		created.Ours.AddBurst(made.Took.Burst())
		if i == 0 {
			if memory, err = residentBoth(ctx, run, with.Service); err != nil {
				return nil, err
			}
			if restart, err = restarts(ctx, run, with, made); err != nil {
				return nil, fmt.Errorf("restart: %w", err)
			}
		}
		if err := with.EndAll(ctx, made); err != nil {
			return nil, err
		}
	}
	return []measure.Pair{created, memory, restart}, nil
}

func residentBoth(ctx context.Context, run *measure.Run, s *rig.Service) (measure.Pair, error) {
	var memory measure.Pair
	ours, err := s.Resident()
	if err != nil {
		return measure.Pair{}, err
	}
	floor, err := rig.StartFloor(ctx, run)
	if err != nil {
		return measure.Pair{}, err
	}
	defer floor.Stop()
	least, err := floor.AtRest(ctx)
	memory.Ours.Add(ours)
	memory.Floor.Add(least)
	return memory, err
}

// restarts kills the service and starts it again: until it lists every sandbox as Running, and a
// command has run in one of them. The floor is what nothing can do without: a server's start, and
// the engine asked for its containers and for the state of each.
func restarts(ctx context.Context, run *measure.Run, with rig.Beside, m rig.Made) (measure.Pair, error) {
	s := with.Service
	ours := func(ctx context.Context) (float64, error) {
		s.Command.Process.Signal(syscall.SIGKILL) // it lives: it has just answered
		<-s.Exited
		s.Stop()
		began := time.Now()
		p, err := s.Start(ctx)
		if err != nil {
			return 0, err
		}
		s.Process = p
		if err := allRun(ctx, s, len(m.Running)); err != nil {
			return 0, err
		}
		daemon, err := s.Daemon(ctx, m.Running[0])
		if err == nil {
			err = daemon.FirstOutput(ctx)
		}
		return measure.Elapsed(began), err
	}
	floor := func(ctx context.Context) (float64, error) {
		began := time.Now()
		p, err := rig.StartFloor(ctx, run)
		if err != nil {
			return 0, err
		}
		defer p.Stop()
		err = with.Engine.InspectAll(ctx, "sandbox.internal/instance="+s.Instance, len(m.Running))
		return measure.Elapsed(began), err
	}
	return run.InTurns(ctx, run.Rounds(5, 1), measure.Sides{Ours: ours, Floor: floor})
}

// allRun returns when the service lists that many sandboxes as Running.
func allRun(ctx context.Context, s *rig.Service, count int) error {
	for deadline := time.Now().Add(rig.UsableTimeout); ; {
		var running struct{ Pagination struct{ TotalItems int } }
		if err := s.Call(ctx, http.MethodGet, "/v1/sandboxes?state=Running&pageSize=1",
			http.StatusOK, nil, &running); err != nil {
			return err
		}
		if running.Pagination.TotalItems == count {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %d sandboxes run of %d", measure.ErrLost, running.Pagination.TotalItems,
				count)
		}
		if err := measure.Pause(ctx, rig.RetryPause); err != nil {
			return err
		}
	}
}
