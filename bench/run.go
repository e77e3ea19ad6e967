package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// bench is one run.
type bench struct {
	bin   string // directory of the programs to measure
	dir   string // temporary, for everything that the run makes
	scale size
	only  []string // names of rows; empty is all
	now   string   // the row that is measured
}

// size says how much a run measures.
type size string

const (
	scaleFull  size = "full"
	scaleQuick size = "quick" // fewer rounds and less data
	scaleGate  size = "gate"  // as many rounds, fewer stored sandboxes
)

// newBench returns a run of the programs in a directory, of the rows of these names, or of all.
func newBench(bin string, scale size, only []string) (*bench, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sandbox-bench-")
	if err != nil {
		return nil, err
	}
	return &bench{bin: bin, dir: dir, scale: scale, only: only}, nil
}

// close removes what the run has made.
func (run *bench) close() {
	if err := os.RemoveAll(run.dir); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
}

// result is what a row has come to.
type result struct {
	row  row
	pair pair
}

// group is a set of rows that share what they are measured with.
type group struct {
	rows    []row
	measure func(context.Context, *bench) ([]result, error)
}

// part is rows of a group that one function measures: a pair for each, in their order. It gets what
// the group shares.
type part[F any] struct {
	rows    []row
	measure func(context.Context, *bench, F) ([]pair, error)
}

// one is a part of a single row.
func one[F any](r row, measure func(context.Context, *bench, F) (pair, error)) part[F] {
	return part[F]{[]row{r}, func(ctx context.Context, run *bench, with F) ([]pair, error) {
		measured, err := measure(ctx, run, with)
		return []pair{measured}, err
	}}
}

// alone is a group of a single row.
func alone(r row, measure func(context.Context, *bench) (pair, error)) group {
	nothing := func(_ context.Context, _ *bench, do func(struct{}) error) error { return do(struct{}{}) }
	return sharing(nothing, one(r, func(ctx context.Context, run *bench, _ struct{}) (pair, error) {
		return measure(ctx, run)
	}))
}

// sharing is a group whose parts are measured, in their order, while within keeps open what they
// share.
func sharing[F any](within func(context.Context, *bench, func(F) error) error, parts ...part[F]) group {
	var g group
	for _, p := range parts {
		g.rows = append(g.rows, p.rows...)
	}
	g.measure = func(ctx context.Context, run *bench) (results []result, err error) {
		err = within(ctx, run, func(with F) error {
			for _, p := range parts {
				if !slices.ContainsFunc(p.rows, run.wants) {
					continue
				}
				run.now = p.rows[0].name
				measured, err := p.measure(ctx, run, with)
				if err != nil {
					return fmt.Errorf("%s: %w", run.now, err)
				}
				for i, r := range p.rows {
					results = append(results, result{r, measured[i]})
				}
			}
			return nil
		})
		return results, err
	}
	return g
}

// measure measures every wanted row, and returns the results in their order, and why rows could not
// be measured.
func (run *bench) measure(ctx context.Context, groups []group) (results []result, failures []error) {
	for _, g := range groups {
		var wanted []string
		for _, r := range g.rows {
			if run.wants(r) {
				wanted = append(wanted, r.name)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		names := strings.Join(wanted, ", ")
		fmt.Fprintf(os.Stderr, "bench: %s\n", names)
		measured, err := g.measure(ctx, run)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", names, err))
		}
		for _, r := range measured {
			switch {
			case !run.wants(r.row): // it was measured with another
			case len(r.pair.ours.values) > 0:
				results = append(results, r)
			case err == nil:
				failures = append(failures, fmt.Errorf("%s: no attempt succeeded", r.row.name))
			}
		}
	}
	return results, failures
}

// wants reports whether the run measures a row.
func (run *bench) wants(r row) bool {
	return len(run.only) == 0 || slices.Contains(run.only, r.name)
}

// rounds is the number of rounds of a row, in a full run and in a quick one.
func (run *bench) rounds(full, quick int) int {
	if run.scale == scaleQuick {
		return quick
	}
	return full
}

// bytes is the size of a transfer, in bytes; a quick run moves an eighth.
func (run *bench) bytes(full int64) int64 {
	if run.scale == scaleQuick {
		return full / 8
	}
	return full
}

// directory makes a directory of its own for a part of the run.
func (run *bench) directory(name string) (string, error) { return os.MkdirTemp(run.dir, name+"-") }

// progress prints a line about the row that is measured.
func (run *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+run.now+": "+format+"\n", args...)
}

// errLost marks an answer that came, and was wrong. It ends the run of a row: there is nothing to
// measure about speed.
var errLost = errors.New("data lost")

// figure measures a row once on one side, in the row's unit.
type figure = func(context.Context) (float64, error)

// sides measures a row once on each side. Where a value comes from many requests, each of these is
// timed, too.
type sides struct {
	ours, floor                 figure
	oursRequests, floorRequests *requests
}

// eachSide is what side makes for ours and for the floor, with the requests of each.
func eachSide[S any](ours, floor S, side func(S, *requests) figure) sides {
	var took, floorTook requests
	return sides{ours: side(ours, &took), floor: side(floor, &floorTook), oursRequests: &took,
		floorRequests: &floorTook}
}

// requests collects how long single requests of one side take, in milliseconds.
type requests struct {
	mutex sync.Mutex
	took  []float64
}

// time times one request. A failed one has no time.
func (r *requests) time(do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	r.add(elapsed(began))
	return nil
}

// add adds what a request took, in milliseconds.
func (r *requests) add(took float64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.took = append(r.took, took)
}

// reset drops the results of the round that does not count.
func (r *requests) reset() {
	if r != nil {
		r.took = nil
	}
}

// inTurns measures both sides of a row, in turns, after one round that does not count. Our side may
// fail: that lowers its success rate. The floor may not, and nothing may be lost.
func (run *bench) inTurns(ctx context.Context, rounds int, s sides) (pair, error) {
	var measured pair
	for i := range rounds + 1 {
		value, err := s.ours(ctx)
		if ctx.Err() != nil {
			return pair{}, context.Cause(ctx)
		}
		if errors.Is(err, errLost) {
			return pair{}, err
		}
		floor, floorErr := s.floor(ctx)
		if floorErr != nil {
			return pair{}, fmt.Errorf("floor: %w", floorErr)
		}
		if i == 0 && err == nil { // warm on both sides
			s.oursRequests.reset()
			s.floorRequests.reset()
			continue
		}
		measured.floor.add(floor)
		if err != nil {
			run.progress("round %d: %v", i, err)
			measured.ours.fail()
			continue
		}
		measured.ours.add(value)
	}
	if s.oursRequests != nil {
		measured.ours.requests, measured.floor.requests = s.oursRequests.took, s.floorRequests.took
	}
	return measured, nil
}

// elapsed is the time since began in milliseconds.
func elapsed(began time.Time) float64 {
	return float64(time.Since(began)) / float64(time.Millisecond)
}

// timed returns how long do takes, in milliseconds.
func timed(do func() error) (float64, error) {
	began := time.Now()
	err := do()
	return elapsed(began), err
}

// speed is size bytes over the time since began, in MiB/s.
func speed(size int64, began time.Time) float64 {
	return float64(size) / (1 << 20) / time.Since(began).Seconds()
}

// pause waits for as long as that, or returns why the run has ended.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clients is how many requests are under way at the same time where there are many.
const clients = 16

// concurrently calls do for 0 to count-1, a few at the same time, and returns the first error.
func concurrently(ctx context.Context, count int, do func(context.Context, int) error) error {
	return all(ctx, count, clients, do)
}

// all is concurrently with so many at the same time.
func all(ctx context.Context, count, atOnce int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	next := make(chan int)
	for range min(atOnce, count) {
		group.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < count && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	group.Wait()
	return context.Cause(ctx)
}
