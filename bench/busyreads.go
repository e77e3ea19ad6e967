package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// background is how many sandboxes are made while another is read.
const background = 50

// measureBusyReads reads one sandbox again and again while others are made. The floor reads the
// same bytes from a minimal server while the engine makes as many containers.
func measureBusyReads(ctx context.Context, run *bench, with beside) (pair, error) {
	id, err := with.create(ctx)
	if err != nil {
		return pair{}, err
	}
	if _, err := with.daemon(ctx, id); err != nil {
		return pair{}, err
	}
	floor, err := startFloor(ctx, run)
	if err != nil {
		return pair{}, err
	}
	defer floor.stop()
	ours := with.reader("/v1/sandboxes/" + id)
	answer, err := ours.get(ctx)
	if err == nil {
		err = isSandbox(answer, id)
	}
	if err == nil {
		err = floor.prebuild(ctx, answer)
	}
	if err != nil {
		return pair{}, err
	}
	theirs := getter{client: floor.client, url: floor.url + "/prebuilt"}
	count := run.rounds(background, 10)
	var result pair
	for range run.rounds(2, 1) {
		var m made
		took, err := readWhile(ctx, ours, answer, func(ctx context.Context) (err error) {
			m, err = with.createMany(ctx, run, count)
			return err
		})
		if err != nil {
			return pair{}, err
		}
		result.ours.addBurst(burst{took, len(took)})
		if err := with.endAll(ctx, m); err != nil {
			return pair{}, err
		}
		took, err = readWhile(ctx, theirs, answer, func(ctx context.Context) error {
			_, err := with.engine.launchMany(ctx, count)
			return err
		})
		if err := errors.Join(err, with.engine.clean(ctx, label)); err != nil {
			return pair{}, err
		}
		result.floor.addBurst(burst{took, len(took)})
	}
	return result, nil
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
