package inside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// spareTime is how long execd gets, between two cells without a context, to start the next spare
// kernel. It does not count.
const spareTime = 3 * time.Second

// Cells has what execd adds to a kernel: HTTP, the queue, the log and the stream. The floor is a
// kernel of the same kind, spoken to with the same adapter by a process of its own.
func Cells() measure.Group {
	const code = "1+1"
	return measure.Sharing(withKernel,
		measure.Single(measure.Row{Name: "cell", What: "cell `1+1` in a context: POST to its completion event",
			Floor: "the same in a kernel spoken to directly",
			Unit:  measure.Milliseconds, Target: measure.Difference(2), Gate: true},
			func(ctx context.Context, run *measure.Run, with kernels) (measure.Pair, error) {
				cell := map[string]any{"code": code, "context": map[string]string{"id": with.id}}
				return run.InTurns(ctx, run.Rounds(500, 50), measure.Sides{Ours: with.cell(cell), Floor: with.floor.Job("cell")})
			}),
		measure.Single(measure.Row{Name: "interrupt", What: "interrupt of a cell that runs until the next cell of the context has ended",
			Floor: "the same in a kernel spoken to directly",
			Unit:  measure.Milliseconds, Target: measure.Difference(5)},
			func(ctx context.Context, run *measure.Run, with kernels) (measure.Pair, error) {
				return run.InTurns(ctx, run.Rounds(100, 20), measure.Sides{Ours: with.interrupted(), Floor: with.floor.Job("interrupt")})
			}),
		measure.Single(measure.Row{Name: "stateless", What: "cell `1+1` without a context, a spare kernel at hand",
			Floor: "the same in a kernel spoken to directly",
			Unit:  measure.Milliseconds, Target: measure.Ours(60)},
			func(ctx context.Context, run *measure.Run, with kernels) (measure.Pair, error) {
				stateless := with.stateless()
				return run.InTurns(ctx, run.Rounds(30, 5), measure.Sides{Floor: with.floor.Job("cell"), Ours: func(ctx context.Context) (float64, error) {
					took, err := stateless(ctx)
					return took, errors.Join(err, measure.Pause(ctx, spareTime))
				}})
			}),
		measure.Single(measure.Row{Name: "stateless-10", What: "each of ten cells `1+1` without a context, one after the other",
			Floor: "a kernel started and asked directly",
			Unit:  measure.Milliseconds, Target: measure.Ratio(1.2)},
			func(ctx context.Context, run *measure.Run, with kernels) (measure.Pair, error) {
				return run.InTurns(ctx, run.Rounds(5, 1), oneAfterTheOther(10, with.stateless(), with.floor.Job("fresh")))
			}))
}

// kernels is a daemon with a Python context, and the floor of its cells.
type kernels struct {
	daemon rig.Execd
	id     string // of the context
	floor  rig.Worker
}

func withKernel(ctx context.Context, run *measure.Run, do func(kernels) error) error {
	p, daemon, err := rig.StartExecd(ctx, run)
	if err != nil {
		return err
	}
	defer p.Stop()
	dir, err := run.Directory("kernel")
	if err != nil {
		return err
	}
	floor, err := startKernel(dir)
	if err != nil {
		return err
	}
	defer floor.Stop()
	id, err := newContext(ctx, daemon)
	if err != nil {
		return err
	}
	return do(kernels{daemon, id, floor})
}

// oneAfterTheOther measures the mean of a number of requests in a row, on both sides.
func oneAfterTheOther(count int, ours, floor measure.Figure) measure.Sides {
	return measure.EachSide(ours, floor, func(one measure.Figure, each *measure.Requests) measure.Figure {
		return func(ctx context.Context) (float64, error) {
			sum := 0.0
			for range count {
				took, err := one(ctx)
				if err != nil {
					return 0, err
				}
				each.Add(took)
				sum += took
			}
			return sum / float64(count), nil
		}
	})
}

// stateless returns what measures a cell without a context, in milliseconds.
func (with kernels) stateless() measure.Figure {
	return with.cell(map[string]any{"code": "1+1", "language": "python"})
}

// interrupted measures from the request to interrupt a cell that runs until the next cell of the
// context has ended, in milliseconds.
func (with kernels) interrupted() measure.Figure {
	in := map[string]string{"id": with.id}
	next := with.cell(map[string]any{"code": "1+1", "context": in})
	return func(ctx context.Context) (float64, error) {
		s, err := with.daemon.Post(ctx, "/code", map[string]any{"code": forever, "context": in})
		if err != nil {
			return 0, err
		}
		defer s.Abandon()
		if _, err := s.Until(rig.EventStdout); err != nil {
			return 0, err
		}
		began := time.Now()
		response, err := with.daemon.Call(ctx, http.MethodDelete, "/code?id="+url.QueryEscape(with.id), "", nil)
		if err != nil {
			return 0, err
		}
		if err := rig.Drain(response); err != nil {
			return 0, err
		}
		if _, err := s.Until(rig.EventError); err != nil {
			return 0, err
		}
		_, err = next(ctx)
		return measure.Elapsed(began), err
	}
}

// newContext creates a Python context and returns its id.
func newContext(ctx context.Context, d rig.Execd) (string, error) {
	response, err := d.Call(ctx, http.MethodPost, "/code/context", "application/json",
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
func (with kernels) cell(request any) measure.Figure {
	return func(ctx context.Context) (float64, error) {
		began := time.Now()
		s, err := with.daemon.Post(ctx, "/code", request)
		if err != nil {
			return 0, err
		}
		_, err = s.Until(rig.EventComplete)
		took := measure.Elapsed(began)
		if err != nil {
			s.Abandon()
			return 0, errors.Join(errors.New("the cell failed"), err)
		}
		return took, s.Finish()
	}
}
