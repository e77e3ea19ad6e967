package main

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"
)

// crowd is how many sandboxes are asked for at once.
const crowd = 200

// manyAtOnce has many sandboxes that are asked for at once, the memory of the service when they run,
// and its start after it was killed then. Each sandbox must come to Running or to a Failed that says
// why; none may be lost or left.
func manyAtOnce() group {
	return sharing(onDocker(""), part[beside]{[]row{
		row{name: "creates-200", what: "200 creates at once: from the first request until each runs",
			floor: "the engine's create and start of as many, 16 at once",
			unit:  milliseconds, target: ratio(1.25)},
		row{name: "rss-service", what: "resident memory of the service, with these 200 running",
			floor: "a minimal net/http program, idle",
			unit:  mebibytes, target: ours(150)},
		row{name: "restart-200", what: "SIGKILL of the service with these 200: from its start until all are listed and one runs a command",
			floor: "a minimal server's start, and the engine asked for the state of each",
			unit:  milliseconds, target: ours(2000)},
	}, measureCrowd})
}

func measureCrowd(ctx context.Context, run *bench, with beside) ([]pair, error) {
	count := run.rounds(crowd, 20)
	var created, memory, restart pair
	for i := range run.rounds(2, 1) {
		took, err := with.engine.launchMany(ctx, count)
		if err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		created.floor.addBurst(burst{took, count})
		if err := with.engine.clean(ctx, label); err != nil {
			return nil, err
		}
		made, err := with.createMany(ctx, run, count)
		if err != nil {
			return nil, err
		}
		created.ours.addBurst(made.took.burst())
		if i == 0 {
			if memory, err = residentBoth(ctx, run, with.service); err != nil {
				return nil, err
			}
			if restart, err = restarts(ctx, run, with, made); err != nil {
				return nil, fmt.Errorf("restart: %w", err)
			}
		}
		if err := with.endAll(ctx, made); err != nil {
			return nil, err
		}
	}
	return []pair{created, memory, restart}, nil
}

func residentBoth(ctx context.Context, run *bench, s *service) (pair, error) {
	var memory pair
	ours, err := s.resident()
	if err != nil {
		return pair{}, err
	}
	floor, err := startFloor(ctx, run)
	if err != nil {
		return pair{}, err
	}
	defer floor.stop()
	least, err := floor.atRest(ctx)
	memory.ours.add(ours)
	memory.floor.add(least)
	return memory, err
}

// restarts kills the service and starts it again: until it lists every sandbox as Running, and a
// command has run in one of them. The floor is what nothing can do without: a server's start, and
// the engine asked for its containers and for the state of each.
func restarts(ctx context.Context, run *bench, with beside, m made) (pair, error) {
	s := with.service
	ours := func(ctx context.Context) (float64, error) {
		s.command.Process.Signal(syscall.SIGKILL) // it lives: it has just answered
		<-s.exited
		s.stop()
		began := time.Now()
		p, err := s.start(ctx)
		if err != nil {
			return 0, err
		}
		s.process = p
		if err := s.allRun(ctx, len(m.running)); err != nil {
			return 0, err
		}
		daemon, err := s.daemon(ctx, m.running[0])
		if err == nil {
			err = daemon.firstOutput(ctx)
		}
		return elapsed(began), err
	}
	floor := func(ctx context.Context) (float64, error) {
		began := time.Now()
		p, err := startFloor(ctx, run)
		if err != nil {
			return 0, err
		}
		defer p.stop()
		err = with.engine.inspectAll(ctx, "sandbox.internal/instance="+s.instance, len(m.running))
		return elapsed(began), err
	}
	return run.inTurns(ctx, run.rounds(5, 1), sides{ours: ours, floor: floor})
}

// allRun returns when the service lists that many sandboxes as Running.
func (s *service) allRun(ctx context.Context, count int) error {
	for deadline := time.Now().Add(usableTimeout); ; {
		var running struct{ Pagination struct{ TotalItems int } }
		if err := s.call(ctx, http.MethodGet, "/v1/sandboxes?state=Running&pageSize=1",
			http.StatusOK, nil, &running); err != nil {
			return err
		}
		if running.Pagination.TotalItems == count {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %d sandboxes run of %d", errLost, running.Pagination.TotalItems,
				count)
		}
		if err := pause(ctx, retryPause); err != nil {
			return err
		}
	}
}
