package sandboxes

import (
	"context"
	"fmt"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const (
	// shortest is the shortest life that the service grants.
	shortest = 60 * time.Second
	// expiryGap is what lies between the expiries of the row of single ones: longer than the end of
	// one takes.
	expiryGap = 500 * time.Millisecond
	// expiryWait bounds how long a row waits for its expiries.
	expiryWait = 5 * time.Minute
)

// measureFirstExpiry takes how late single sandboxes with a container are Terminated, which they
// are when it is gone; the service has had nothing to do for most of a minute. The floor is the
// removal of a container by the engine, measured after each.
func measureFirstExpiry(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	ctx, cancel := context.WithTimeout(ctx, expiryWait)
	defer cancel()
	events, err := with.Follow(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	defer events.Close()
	count, began := run.Rounds(20, 3), time.Now()
	expiries, containers := make(map[string]time.Time, count), make([]string, count)
	for i := range containers {
		asked := time.Now()
		id, expires, err := with.CreateFor(ctx, shortest)
		if err != nil {
			return measure.Pair{}, err
		}
		expiries[id] = expires
		if err := with.Running(ctx, id); err != nil {
			return measure.Pair{}, err
		}
		if containers[i], err = with.Engine.Launch(ctx); err != nil {
			return measure.Pair{}, err
		}
		if err := measure.Pause(ctx, time.Until(asked.Add(expiryGap))); err != nil {
			return measure.Pair{}, err
		}
	}
	if took := time.Since(began); took > shortest { // the first event would be read late
		return measure.Pair{}, fmt.Errorf("%d sandboxes were made in %v, when the first had expired", count, took)
	}
	var result measure.Pair
	err = events.Ended(expiries, func(late float64) error {
		result.Ours.Add(late)
		began := time.Now()
		if err := with.Engine.Remove(ctx, containers[len(result.Ours.Values)-1]); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		result.Floor.Add(measure.Elapsed(began))
		return nil
	})
	return result, err
}
