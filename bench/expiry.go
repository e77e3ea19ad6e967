package main

import (
	"context"
	"fmt"
	"time"
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
func measureFirstExpiry(ctx context.Context, run *bench, with beside) (pair, error) {
	ctx, cancel := context.WithTimeout(ctx, expiryWait)
	defer cancel()
	events, err := with.follow(ctx)
	if err != nil {
		return pair{}, err
	}
	defer events.close()
	count, began := run.rounds(20, 3), time.Now()
	expiries, containers := make(map[string]time.Time, count), make([]string, count)
	for i := range containers {
		asked := time.Now()
		id, expires, err := with.createFor(ctx, shortest)
		if err != nil {
			return pair{}, err
		}
		expiries[id] = expires
		if err := with.running(ctx, id); err != nil {
			return pair{}, err
		}
		if containers[i], err = with.engine.launch(ctx); err != nil {
			return pair{}, err
		}
		if err := pause(ctx, time.Until(asked.Add(expiryGap))); err != nil {
			return pair{}, err
		}
	}
	if took := time.Since(began); took > shortest { // the first event would be read late
		return pair{}, fmt.Errorf("%d sandboxes were made in %v, when the first had expired", count, took)
	}
	var result pair
	err = events.ended(expiries, func(late float64) error {
		result.ours.add(late)
		began := time.Now()
		if err := with.engine.remove(ctx, containers[len(result.ours.values)-1]); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		result.floor.add(elapsed(began))
		return nil
	})
	return result, err
}
