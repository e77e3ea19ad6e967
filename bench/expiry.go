package main

import (
	"context"
	"fmt"
	"time"
)

// measureExpiry follows the events until every sandbox has ended, and takes how late a client reads
// of each: an event is sent once it is durable and the container, if there was one, is gone. The
// floor is how late as many timers of the standard library are that are due at the same moments, in
// a process of their own, so that what the machine does meanwhile hits both.
func (b *bench) measureExpiry(ctx context.Context, s *service,
	expiries map[string]time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, expiryWait)
	defer cancel()
	events, err := s.follow(ctx)
	if err != nil {
		return err
	}
	defer events.close()
	b.progress("waiting for %d sandboxes to expire", len(expiries))
	worker, err := b.startWorker(ctx)
	if err != nil {
		return err
	}
	defer worker.Stop()
	timers := []string{"timers"}
	for _, due := range expiries {
		timers = append(timers, due.Format(time.RFC3339Nano))
	}
	var result pair
	timed := make(chan error, 1)
	go func() {
		lateness, err := worker.Do(timers...)
		for _, late := range lateness {
			result.floor.add(late)
		}
		timed <- err
	}()
	err = events.ended(expiries, func(late float64) error {
		result.ours.add(late)
		return nil
	})
	if err != nil {
		return err
	}
	if err := <-timed; err != nil {
		return fmt.Errorf("floor of %s: %w", rowExpiry, err)
	}
	b.results[rowExpiry] = pair{ours: result.ours.inOne(), floor: result.floor.inOne()}
	return nil
}

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
func (b *bench) measureFirstExpiry(ctx context.Context, s *service, engine *engine) error {
	ctx, cancel := context.WithTimeout(ctx, expiryWait)
	defer cancel()
	events, err := s.follow(ctx)
	if err != nil {
		return err
	}
	defer events.close()
	count, began := b.rounds(20, 3), time.Now()
	expiries, containers := make(map[string]time.Time, count), make([]string, count)
	for i := range containers {
		asked := time.Now()
		id, expires, err := s.createFor(ctx, shortest)
		if err != nil {
			return err
		}
		expiries[id] = expires
		if err := s.running(ctx, id); err != nil {
			return err
		}
		if containers[i], err = engine.launch(ctx); err != nil {
			return err
		}
		if err := pause(ctx, time.Until(asked.Add(expiryGap))); err != nil {
			return err
		}
	}
	if took := time.Since(began); took > shortest { // the first event would be read late
		return fmt.Errorf("%d sandboxes were made in %v, when the first had expired", count, took)
	}
	var result pair
	err = events.ended(expiries, func(late float64) error {
		result.ours.add(late)
		began := time.Now()
		if err := engine.remove(ctx, containers[len(result.ours.values)-1]); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		result.floor.add(elapsed(began))
		return nil
	})
	b.results[rowFirstExpiry] = result
	return err
}
