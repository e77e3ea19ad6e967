package sandboxes

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// background is how many sandboxes are made while another is read.
const background = 50

// measureBusyReads reads one sandbox again and again while others are made. The floor reads the
// same bytes from a minimal server while the engine makes as many containers.
func measureBusyReads(ctx context.Context, run *measure.Run, with rig.Beside) (measure.Pair, error) {
	id, err := with.Create(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	if _, err := with.Daemon(ctx, id); err != nil {
		return measure.Pair{}, err
	}
	floor, err := rig.StartFloor(ctx, run)
	if err != nil {
		return measure.Pair{}, err
	}
	defer floor.Stop()
	ours := with.Reader("/v1/sandboxes/" + id)
	answer, err := ours.Get(ctx)
	if err == nil {
		err = isSandbox(answer, id)
	}
	if err == nil {
		err = floor.Prebuild(ctx, answer)
	}
	if err != nil {
		return measure.Pair{}, err
	}
	theirs := rig.Getter{Client: floor.Client, URL: floor.URL + "/prebuilt"}
	count := run.Rounds(background, 10)
	var result measure.Pair
	for range run.Rounds(2, 1) {
		var m rig.Made
		took, err := readWhile(ctx, ours, answer, func(ctx context.Context) (err error) {
			m, err = with.CreateMany(ctx, run, count)
			return err
		})
		if err != nil {
			return measure.Pair{}, err
		}
		result.Ours.AddBurst(measure.Burst{Values: took, Attempts: len(took)})
		if err := with.EndAll(ctx, m); err != nil {
			return measure.Pair{}, err
		}
		took, err = readWhile(ctx, theirs, answer, func(ctx context.Context) error {
			_, err := with.Engine.LaunchMany(ctx, count)
			return err
		})
		if err := errors.Join(err, with.Engine.Clean(ctx, rig.Label)); err != nil {
			return measure.Pair{}, err
		}
		result.Floor.AddBurst(measure.Burst{Values: took, Attempts: len(took)})
	}
	return result, nil
}

// readEvery is the pace of those reads: a client that looks, and not one that loads the machine.
const readEvery = 5 * time.Millisecond

// readWhile reads until the work is done, and returns how long after the moment that the pace had
// for it each answer was there, in milliseconds: the reads that an answer holds up are late, too.
func readWhile(ctx context.Context, from rig.Getter, want []byte,
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
		if err := from.Expect(ctx, want); err != nil {
			cancel(err)
			return nil, context.Cause(ctx)
		}
		took = append(took, measure.Elapsed(planned))
	}
}
