package rig

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sandbox.internal/bench/measure"
)

// crowdWait bounds how long many sandboxes take.
const crowdWait = 10 * time.Minute

// LaunchMany has the engine make containers, as many as there will be of ours, because the more an
// engine has, the longer the next one takes. It returns after how many milliseconds each has
// started.
func (e *Engine) LaunchMany(ctx context.Context, count int) ([]float64, error) {
	took, began := make([]float64, count), time.Now()
	err := measure.Concurrently(ctx, count, func(ctx context.Context, i int) error {
		_, err := e.Launch(ctx)
		took[i] = measure.Elapsed(began)
		return err
	})
	return took, err
}

// Made is a crowd of sandboxes.
type Made struct {
	ids     []string
	Running []string
	Took    measure.Sample // until each runs, in milliseconds from the first request on
}

// RunMany is createMany for sandboxes all of which have to run, and returns their ids.
func (s *Service) RunMany(ctx context.Context, run *measure.Run, count int) ([]string, error) {
	made, err := s.CreateMany(ctx, run, count)
	if err == nil && len(made.Running) < count {
		err = fmt.Errorf("%w: %d of %d sandboxes run", measure.ErrLost, len(made.Running), count)
	}
	return made.ids, err
}

// CreateMany asks for all of them at once and returns when none is Pending.
func (s *Service) CreateMany(ctx context.Context, run *measure.Run, count int) (Made, error) {
	ctx, cancel := context.WithTimeout(ctx, crowdWait)
	defer cancel()
	events, err := s.Follow(ctx)
	if err != nil {
		return Made{}, err
	}
	defer events.Close()
	m, began := Made{ids: make([]string, count)}, time.Now()
	asked := make(chan error, 1)
	go func() {
		asked <- measure.AtOnce(ctx, count, count, func(ctx context.Context, i int) (err error) {
			m.ids[i], err = s.Create(ctx)
			return err
		})
	}()
	var failed []string
	for len(m.Running)+len(failed) < count {
		id, to, err := events.next()
		if err != nil {
			return Made{}, fmt.Errorf("%w: %d sandboxes neither run nor failed: %w", measure.ErrLost,
				count-len(m.Running)-len(failed), err)
		}
		switch to {
		case "Running":
			m.Took.Add(measure.Elapsed(began))
			m.Running = append(m.Running, id)
		case "Failed":
			m.Took.Fail()
			failed = append(failed, id)
		}
	}
	if err := <-asked; err != nil {
		return Made{}, fmt.Errorf("%w: an answer to a creation: %w", measure.ErrLost, err)
	}
	for _, id := range failed {
		status, err := s.Status(ctx, id)
		if err == nil && status.Message == "" {
			err = fmt.Errorf("%w: sandbox %s failed without a message", measure.ErrLost, id)
		}
		if err != nil {
			return Made{}, err
		}
		run.Progress("Failed: %s: %s", status.Reason, status.Message)
	}
	if known := slices.Concat(m.Running, failed); !slices.Equal(slices.Sorted(slices.Values(known)),
		slices.Sorted(slices.Values(m.ids))) {
		return Made{}, fmt.Errorf("%w: the events are about other sandboxes than the answers",
			measure.ErrLost)
	}
	return m, nil
}

// Status is the state of a sandbox, and why it has it.
type Status struct{ State, Reason, Message string }

// Status returns that of a sandbox.
func (s *Service) Status(ctx context.Context, id string) (Status, error) {
	var sandbox struct{ Status Status }
	err := s.Call(ctx, http.MethodGet, "/v1/sandboxes/"+id, http.StatusOK, nil, &sandbox)
	return sandbox.Status, err
}

// Running returns when the sandbox runs. A sandbox that fails will not.
func (s *Service) Running(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, UsableTimeout)
	defer cancel()
	for {
		status, err := s.Status(ctx, id)
		if err != nil || status.State == "Running" {
			return err
		}
		if status.State != "Pending" {
			return fmt.Errorf("%w: sandbox %s is %s: %s: %s", measure.ErrLost, id, status.State,
				status.Reason, status.Message)
		}
		if err := measure.Pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("sandbox %s does not run: %w", id, err)
		}
	}
}

// end deletes a sandbox, which may have ended by itself, and returns when it has ended.
func (s *Service) end(ctx context.Context, id string) error {
	status, err := s.Status(ctx, id)
	if err != nil || status.State == "Failed" {
		return err
	}
	return s.Delete(ctx, id)
}

// EndAll ends those that were made.
func (s *Service) EndAll(ctx context.Context, m Made) error {
	return measure.Concurrently(ctx, len(m.ids), func(ctx context.Context, i int) error { return s.end(ctx, m.ids[i]) })
}
