package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// asleepPause is the time between two looks for a sandbox that falls asleep.
const asleepPause = 5 * time.Millisecond

// asleepWait bounds how long a sandbox takes to fall asleep.
const asleepWait = 90 * time.Second

// Wake has a command in a sandbox that sleeps after 50 ms, by its published port, until the command
// has ended. The floor is the same in a sandbox that does not sleep.
func Wake() measure.Group {
	return measure.Sharing(rig.OnLocal("crun", rig.Plan{}),
		measure.Single(measure.Row{Name: "wake", What: "a command in a sandbox that sleeps, by its published port, until it has ended",
			Floor: "the same in a sandbox that is awake",
			Unit:  measure.Milliseconds, Target: measure.TailDifference(5)},
			measureWake))
}

func measureWake(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	id, sleeping, err := with.Usable(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	other, awake, err := with.Usable(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	if err := sleepWhenIdle(ctx, with.Service, id); err != nil {
		return measure.Pair{}, err
	}
	result, err := run.InTurns(ctx, run.Rounds(500, 50), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			if err := awaitAsleep(ctx, with.Service, id); err != nil {
				return 0, err
			}
			return measure.Timed(func() error { return sleeping.Complete(ctx, "true") })
		},
		Floor: func(ctx context.Context) (float64, error) {
			return measure.Timed(func() error { return awake.Complete(ctx, "true") })
		},
	})
	return result, errors.Join(err, with.Delete(ctx, id), with.Delete(ctx, other))
}

// sleepWhenIdle has a sandbox fall asleep once it has been idle for 50 ms.
func sleepWhenIdle(ctx context.Context, s *rig.Service, id string) error {
	return s.Call(ctx, http.MethodPatch, "/v1/sandboxes/"+id+"/lifecycle", http.StatusOK,
		map[string]any{"onIdle": "pause", "idleSeconds": 0.05}, nil)
}

// awaitAsleep waits until the sandbox sleeps.
func awaitAsleep(ctx context.Context, s *rig.Service, id string) error {
	ctx, cancel := context.WithTimeout(ctx, asleepWait)
	defer cancel()
	for {
		status, err := s.Status(ctx, id)
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
