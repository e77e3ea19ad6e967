package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// crowdWait bounds how long many sandboxes take.
const crowdWait = 10 * time.Minute

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
func (s *service) runMany(ctx context.Context, run *bench, count int) ([]string, error) {
	made, err := s.createMany(ctx, run, count)
	if err == nil && len(made.running) < count {
		err = fmt.Errorf("%w: %d of %d sandboxes run", errLost, len(made.running), count)
	}
	return made.ids, err
}

// createMany asks for all of them at once and returns when none is Pending.
func (s *service) createMany(ctx context.Context, run *bench, count int) (made, error) {
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
		run.progress("Failed: %s: %s", status.Reason, status.Message)
	}
	if known := slices.Concat(m.running, failed); !slices.Equal(slices.Sorted(slices.Values(known)),
		slices.Sorted(slices.Values(m.ids))) {
		return made{}, fmt.Errorf("%w: the events are about other sandboxes than the answers",
			errLost)
	}
	return m, nil
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

// endAll ends those that were made.
func (s *service) endAll(ctx context.Context, m made) error {
	return concurrently(ctx, len(m.ids), func(ctx context.Context, i int) error { return s.end(ctx, m.ids[i]) })
}
