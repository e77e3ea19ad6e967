package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// crowd is how many sandboxes are asked for at once.
	crowd = 200
	// crowdWait bounds how long they take.
	crowdWait = 10 * time.Minute
	// background is how many are made while others are read.
	background = 50
)

// measureCrowd asks for many sandboxes at once, reads the service's memory when they run, and kills
// it then. Each sandbox must come to Running or to a Failed that says why; none may be lost or
// left.
func (b *bench) measureCrowd(ctx context.Context) error {
	return b.withService(ctx, "", func(s *service, engine *engine) error {
		count := b.rounds(crowd, 20)
		var created, memory, restart pair
		for i := range b.rounds(2, 1) {
			took, err := engine.launchMany(ctx, count)
			if err != nil {
				return fmt.Errorf("floor of %s: %w", rowCrowd, err)
			}
			created.floor.addBurst(burst{took, count})
			if err := engine.clean(ctx, label); err != nil {
				return err
			}
			made, err := b.createMany(ctx, s, count)
			if err != nil {
				return err
			}
			created.ours.addBurst(made.took.burst())
			if i == 0 {
				if memory, err = b.residentBoth(ctx, s); err != nil {
					return err
				}
				if restart, err = b.restarts(ctx, s, engine, made); err != nil {
					return fmt.Errorf("%s: %w", rowRestart, err)
				}
			}
			if err := concurrently(ctx, count,
				func(ctx context.Context,
					i int) error {
					return s.end(ctx, made.ids[i])
				}); err != nil {
				return err
			}
		}
		b.results[rowCrowd], b.results[rowService], b.results[rowRestart] = created, memory, restart
		return nil
	})
}

// launchMany has the engine make containers, as many as there will be of ours, because the more an
// engine has, the longer the next one takes. It returns after how many milliseconds each has
// started.
func (e *engine) launchMany(ctx context.Context, count int) ([]float64, error) {
	took, began := make([]float64, count), time.Now()
	err := concurrently(ctx, count, func(ctx context.Context, i int) error {
		_, err := e.launch(ctx)
		took[i] = elapsed(began)
		return err
	})
	return took, err
}

// made is a crowd of sandboxes.
type made struct {
	ids     []string
	running []string
	took    sample // until each runs, in milliseconds from the first request on
}

// runMany is createMany for sandboxes all of which have to run, and returns their ids.
func (b *bench) runMany(ctx context.Context, s *service, count int) ([]string, error) {
	made, err := b.createMany(ctx, s, count)
	if err == nil && len(made.running) < count {
		err = fmt.Errorf("%w: %d of %d sandboxes run", errLost, len(made.running), count)
	}
	return made.ids, err
}

// createMany asks for all of them at once and returns when none is Pending.
func (b *bench) createMany(ctx context.Context, s *service, count int) (made, error) {
	ctx, cancel := context.WithTimeout(ctx, crowdWait)
	defer cancel()
	events, err := s.follow(ctx)
	if err != nil {
		return made{}, err
	}
	defer events.close()
	m, began := made{ids: make([]string, count)}, time.Now()
	asked := make(chan error, 1)
	go func() {
		asked <- all(ctx, count, count, func(ctx context.Context, i int) (err error) {
			m.ids[i], err = s.create(ctx)
			return err
		})
	}()
	var failed []string
	for len(m.running)+len(failed) < count {
		id, to, err := events.next()
		if err != nil {
			return made{}, fmt.Errorf("%w: %d sandboxes neither run nor failed: %w", errLost,
				count-len(m.running)-len(failed), err)
		}
		switch to {
		case "Running":
			m.took.add(elapsed(began))
			m.running = append(m.running, id)
		case "Failed":
			m.took.fail()
			failed = append(failed, id)
		}
	}
	if err := <-asked; err != nil {
		return made{}, fmt.Errorf("%w: an answer to a creation: %w", errLost, err)
	}
	for _, id := range failed {
		status, err := s.status(ctx, id)
		if err == nil && status.Message == "" {
			err = fmt.Errorf("%w: sandbox %s failed without a message", errLost, id)
		}
		if err != nil {
			return made{}, err
		}
		b.progress("%s: Failed: %s: %s", rowCrowd, status.Reason, status.Message)
	}
	if known := slices.Concat(m.running, failed); !slices.Equal(slices.Sorted(slices.Values(known)),
		slices.Sorted(slices.Values(m.ids))) {
		return made{}, fmt.Errorf("%w: the events are about other sandboxes than the answers",
			errLost)
	}
	return m, nil
}

func (b *bench) residentBoth(ctx context.Context, s *service) (pair, error) {
	var memory pair
	ours, err := s.resident()
	if err != nil {
		return pair{}, err
	}
	floor, err := b.startFloor(ctx)
	if err != nil {
		return pair{}, err
	}
	defer floor.stop()
	least, err := atRest(ctx, floor)
	memory.ours.add(ours)
	memory.floor.add(least)
	return memory, err
}

// restarts kills the service and starts it again: until it lists every sandbox as Running, and a
// command has run in one of them. The floor is what nothing can do without: a server's start, and
// the engine asked for its containers and for the state of each.
func (b *bench) restarts(ctx context.Context, s *service, engine *engine, m made) (pair, error) {
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
		p, err := b.startFloor(ctx)
		if err != nil {
			return 0, err
		}
		defer p.stop()
		err = engine.inspectAll(ctx, "sandbox.internal/instance="+s.instance, len(m.running))
		return elapsed(began), err
	}
	err := b.inTurns(ctx, rowRestart, b.rounds(5, 1), sides{ours: ours, floor: floor})
	return b.results[rowRestart], err
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

type status struct{ State, Reason, Message string }

func (s *service) status(ctx context.Context, id string) (status, error) {
	var sandbox struct{ Status status }
	err := s.call(ctx, http.MethodGet, "/v1/sandboxes/"+id, http.StatusOK, nil, &sandbox)
	return sandbox.Status, err
}

// running returns when the sandbox runs. One that fails will not.
func (s *service) running(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	for {
		status, err := s.status(ctx, id)
		if err != nil || status.State == "Running" {
			return err
		}
		if status.State != "Pending" {
			return fmt.Errorf("%w: sandbox %s is %s: %s: %s", errLost, id, status.State,
				status.Reason, status.Message)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("sandbox %s does not run: %w", id, err)
		}
	}
}

// end deletes a sandbox, which may have ended by itself, and returns when it has ended.
func (s *service) end(ctx context.Context, id string) error {
	status, err := s.status(ctx, id)
	if err != nil || status.State == "Failed" {
		return err
	}
	return s.delete(ctx, id)
}

// measureBusyReads reads one sandbox again and again while others are made. The floor reads the
// same bytes from a minimal server while the engine makes as many containers.
func (b *bench) measureBusyReads(ctx context.Context, s *service, engine *engine) error {
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	if _, err := s.daemon(ctx, id); err != nil {
		return err
	}
	floor, err := b.startFloor(ctx)
	if err != nil {
		return err
	}
	defer floor.stop()
	ours := getter{client: s.client, url: s.url + "/v1/sandboxes/" + id,
		header: http.Header{keyHeader: {key}}}
	answer, err := ours.get(ctx)
	if err == nil {
		err = isSandbox(answer, id)
	}
	if err == nil {
		err = floor.prebuild(ctx, answer)
	}
	if err != nil {
		return err
	}
	theirs := getter{client: floor.client, url: floor.url + "/prebuilt"}
	count := b.rounds(background, 10)
	var result pair
	for range b.rounds(2, 1) {
		var m made
		took, err := readWhile(ctx, ours, answer, func(ctx context.Context) (err error) {
			m, err = b.createMany(ctx, s, count)
			return err
		})
		if err != nil {
			return err
		}
		result.ours.addBurst(burst{took, len(took)})
		if err := concurrently(ctx, count,
			func(ctx context.Context, i int) error { return s.end(ctx, m.ids[i]) }); err != nil {
			return err
		}
		took, err = readWhile(ctx, theirs, answer, func(ctx context.Context) error {
			_, err := engine.launchMany(ctx, count)
			return err
		})
		if err := errors.Join(err, engine.clean(ctx, label)); err != nil {
			return err
		}
		result.floor.addBurst(burst{took, len(took)})
	}
	b.results[rowGetBusy] = result
	return nil
}

// readEvery is the pace of those reads: a client that looks, and not one that loads the machine.
const readEvery = 5 * time.Millisecond

// readWhile reads until the work is done, and returns how long after the moment that the pace had
// for it each answer was there, in milliseconds: the reads that an answer holds up are late, too.
func readWhile(ctx context.Context, from getter, want []byte,
	work func(context.Context) error) ([]float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	var ended time.Time
	done := make(chan struct{})
	group.Go(func() {
		defer close(done)
		if err := work(ctx); err != nil {
			cancel(err)
		}
		ended = time.Now()
	})
	var took []float64
	for planned := time.Now(); ; planned = planned.Add(readEvery) {
		select {
		case <-done:
		case <-time.After(time.Until(planned)):
		}
		select {
		case <-done:
			if planned.After(ended) { // else it was due while the work went on
				return took, context.Cause(ctx)
			}
		default:
		}
		if err := from.expect(ctx, want); err != nil {
			cancel(err)
			return nil, context.Cause(ctx)
		}
		took = append(took, elapsed(planned))
	}
}
