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

// asleepWait bounds how long a sandbox takes to fall asleep.
const asleepWait = 90 * time.Second

// wake has a command in a sandbox that sleeps after 50 ms, by its published port, until the command has
// ended. The floor is the same in a sandbox that does not sleep.
func wake() group {
	return sharing(onLocal("crun", plan{}),
		one(row{name: "wake", what: "a command in a sandbox that sleeps, by its published port, until it has ended",
			floor: "the same in a sandbox that is awake",
			unit:  milliseconds, target: tailDifference(5)},
			measureWake))
}

func measureWake(ctx context.Context, run *bench, with beside) (pair, error) {
	id, sleeping, err := with.usable(ctx)
	if err != nil {
		return pair{}, err
	}
	other, awake, err := with.usable(ctx)
	if err != nil {
		return pair{}, err
	}
	if err := sleepWhenIdle(ctx, with.service, id); err != nil {
		return pair{}, err
	}
	result, err := run.inTurns(ctx, run.rounds(500, 50), sides{
		ours: func(ctx context.Context) (float64, error) {
			if err := awaitAsleep(ctx, with.service, id); err != nil {
				return 0, err
			}
			return timed(func() error { return sleeping.complete(ctx, "true") })
		},
		floor: func(ctx context.Context) (float64, error) {
			return timed(func() error { return awake.complete(ctx, "true") })
		},
	})
	return result, errors.Join(err, with.delete(ctx, id), with.delete(ctx, other))
}

// sleepWhenIdle has a sandbox fall asleep once it has been idle for 50 ms.
func sleepWhenIdle(ctx context.Context, s *service, id string) error {
	return s.call(ctx, http.MethodPatch, "/v1/sandboxes/"+id+"/lifecycle", http.StatusOK,
		map[string]any{"onIdle": "pause", "idleSeconds": 0.05}, nil)
}

// awaitAsleep waits until the sandbox sleeps.
func awaitAsleep(ctx context.Context, s *service, id string) error {
	ctx, cancel := context.WithTimeout(ctx, asleepWait)
	defer cancel()
	for {
		status, err := s.status(ctx, id)
		if err != nil || status.State == "Paused" && status.Reason == "IDLE" {
			return err
		}
		select {
		case <-time.After(asleepPause):
		case <-ctx.Done():
			return fmt.Errorf("the sandbox is %s and does not fall asleep: %w", status.State, ctx.Err())
		}
	}
}
