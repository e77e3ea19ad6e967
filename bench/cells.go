package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// spareTime is how long execd gets, between two cells without a context, to start the next spare
// kernel. It does not count.
const spareTime = 3 * time.Second

// cells has what execd adds to a kernel: HTTP, the queue, the log and the stream. The floor is a
// kernel of the same kind, spoken to with the same adapter by a process of its own.
func cells() group {
	const code = "1+1"
	return sharing(withKernel,
		one(row{name: "cell", what: "cell `1+1` in a context: POST to its completion event",
			floor: "the same in a kernel spoken to directly",
			unit:  milliseconds, target: difference(2), gate: true},
			func(ctx context.Context, run *bench, with kernels) (pair, error) {
				cell := map[string]any{"code": code, "context": map[string]string{"id": with.id}}
				return run.inTurns(ctx, run.rounds(500, 50), sides{ours: with.daemon.cell(cell), floor: with.floor.one("cell")})
			}),
		one(row{name: "interrupt", what: "interrupt of a cell that runs until the next cell of the context has ended",
			floor: "the same in a kernel spoken to directly",
			unit:  milliseconds, target: difference(5)},
			func(ctx context.Context, run *bench, with kernels) (pair, error) {
				return run.inTurns(ctx, run.rounds(100, 20), sides{ours: with.daemon.interrupted(with.id), floor: with.floor.one("interrupt")})
			}),
		one(row{name: "stateless", what: "cell `1+1` without a context, a spare kernel at hand",
			floor: "the same in a kernel spoken to directly",
			unit:  milliseconds, target: ours(60)},
			func(ctx context.Context, run *bench, with kernels) (pair, error) {
				stateless := with.daemon.stateless()
				return run.inTurns(ctx, run.rounds(30, 5), sides{floor: with.floor.one("cell"), ours: func(ctx context.Context) (float64, error) {
					took, err := stateless(ctx)
					return took, errors.Join(err, pause(ctx, spareTime))
				}})
			}),
		one(row{name: "stateless-10", what: "each of ten cells `1+1` without a context, one after the other",
			floor: "a kernel started and asked directly",
			unit:  milliseconds, target: ratio(1.2)},
			func(ctx context.Context, run *bench, with kernels) (pair, error) {
				return run.inTurns(ctx, run.rounds(5, 1), oneAfterTheOther(10, with.daemon.stateless(), with.floor.one("fresh")))
			}))
}

// kernels is a daemon with a Python context, and the floor of its cells.
type kernels struct {
	daemon execd
	id     string // of the context
	floor  worker
}

func withKernel(ctx context.Context, run *bench, do func(kernels) error) error {
	p, daemon, err := startExecd(ctx, run)
	if err != nil {
		return err
	}
	defer p.stop()
	dir, err := run.directory("kernel")
	if err != nil {
		return err
	}
	floor, err := startKernel(dir)
	if err != nil {
		return err
	}
	defer floor.Stop()
	id, err := daemon.newContext(ctx)
	if err != nil {
		return err
	}
	return do(kernels{daemon, id, floor})
}

// oneAfterTheOther measures the mean of a number of requests in a row, on both sides.
func oneAfterTheOther(count int, ours, floor figure) sides {
	return eachSide(ours, floor, func(one figure, each *requests) figure {
		return func(ctx context.Context) (float64, error) {
			sum := 0.0
			for range count {
				took, err := one(ctx)
				if err != nil {
					return 0, err
				}
				each.add(took)
				sum += took
			}
			return sum / float64(count), nil
		}
	})
}

// stateless returns what measures a cell without a context, in milliseconds.
func (d execd) stateless() figure { return d.cell(map[string]any{"code": "1+1", "language": "python"}) }

// interrupted measures from the request to interrupt a cell that runs until the next cell of the
// context has ended, in milliseconds.
func (d execd) interrupted(id string) figure {
	in := map[string]string{"id": id}
	next := d.cell(map[string]any{"code": "1+1", "context": in})
	return func(ctx context.Context) (float64, error) {
		s, err := d.post(ctx, "/code", map[string]any{"code": forever, "context": in})
		if err != nil {
			return 0, err
		}
		defer s.abandon()
		if _, err := s.until(eventStdout); err != nil {
			return 0, err
		}
		began := time.Now()
		response, err := d.call(ctx, http.MethodDelete, "/code?id="+url.QueryEscape(id), "", nil)
		if err != nil {
			return 0, err
		}
		if err := drain(response); err != nil {
			return 0, err
		}
		if _, err := s.until(eventError); err != nil {
			return 0, err
		}
		_, err = next(ctx)
		return elapsed(began), err
	}
}

// newContext creates a Python context and returns its id.
func (d execd) newContext(ctx context.Context) (string, error) {
	response, err := d.call(ctx, http.MethodPost, "/code/context", "application/json",
		bytes.NewReader([]byte(`{"language":"python"}`)))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var created struct{ ID string }
	if err := json.NewDecoder(response.Body).Decode(&created); err != nil {
		return "", err
	}
	return created.ID, nil
}

// cell returns what measures a cell, from the request to the completion event, in milliseconds.
func (d execd) cell(request any) figure {
	return func(ctx context.Context) (float64, error) {
		began := time.Now()
		s, err := d.post(ctx, "/code", request)
		if err != nil {
			return 0, err
		}
		_, err = s.until(eventComplete)
		took := elapsed(began)
		if err != nil {
			s.abandon()
			return 0, errors.Join(errors.New("the cell failed"), err)
		}
		return took, s.finish()
	}
}
