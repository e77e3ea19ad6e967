package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// asleepPause is the time between two looks for a sandbox that falls asleep.
const asleepPause = 5 * time.Millisecond

// measureWake measures a command in a sandbox that sleeps after 50 ms, by its published port, until
// the command has ended. The floor is the same in a sandbox that does not sleep.
func (b *bench) measureWake(ctx context.Context) error {
	return b.withLocal(ctx, "crun", func(s *service, _ *engine) error {
		id, sleeping, err := s.usableWithID(ctx)
		if err != nil {
			return err
		}
		other, awake, err := s.usableWithID(ctx)
		if err != nil {
			return err
		}
		if err := s.sleepWhenIdle(ctx, id); err != nil {
			return err
		}
		timed := func(ctx context.Context, daemon execd) (float64, error) {
			began := time.Now()
			err := daemon.complete(ctx, "true")
			return elapsed(began), err
		}
		err = b.inTurns(ctx, rowWake, b.rounds(500, 50), sides{
			ours: func(ctx context.Context) (float64, error) {
				if err := s.awaitAsleep(ctx, id); err != nil {
					return 0, err
				}
				return timed(ctx, sleeping)
			},
			floor: func(ctx context.Context) (float64, error) { return timed(ctx, awake) },
		})
		return errors.Join(err, s.delete(ctx, id), s.delete(ctx, other))
	})
}

// sleepWhenIdle has a sandbox fall asleep once it has been idle for 50 ms.
func (s *service) sleepWhenIdle(ctx context.Context, id string) error {
	return s.call(ctx, http.MethodPatch, "/v1/sandboxes/"+id+"/lifecycle", http.StatusOK,
		map[string]any{"onIdle": "pause", "idleSeconds": 0.05}, nil)
}

// awaitAsleep waits until the sandbox sleeps.
func (s *service) awaitAsleep(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, patience*time.Second)
	defer cancel()
	for {
		var sandbox struct {
			Status struct{ State, Reason string }
		}
		if err := s.call(ctx, http.MethodGet, "/v1/sandboxes/"+id, http.StatusOK, nil, &sandbox); err != nil {
			return err
		}
		if sandbox.Status.State == "Paused" && sandbox.Status.Reason == "IDLE" {
			return nil
		}
		select {
		case <-time.After(asleepPause):
		case <-ctx.Done():
			return fmt.Errorf("the sandbox is %s and does not fall asleep: %w", sandbox.Status.State, ctx.Err())
		}
	}
}
