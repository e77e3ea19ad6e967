// Package measure has what a run of the bench is made of: rows, which are values, the functions
// that measure them on both sides in turns, and what is calculated from the figures.
package measure

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

// Run is a run of the bench.
type Run struct {
	Bin   string // directory of the programs to measure
	Dir   string // temporary, for everything that the run makes
	Scale Scale
	only  []string // names of rows; empty is all
	now   string   // the row that is measured
}

// Scale says how much a run measures.
type Scale string

const (
	ScaleFull  Scale = "full"
	ScaleQuick Scale = "quick" // fewer rounds and less data
	ScaleGate  Scale = "gate"  // as many rounds, fewer stored sandboxes
)

// NewRun returns a run of the programs in a directory, of the rows of these names, or of all.
func NewRun(bin string, scale Scale, only []string) (*Run, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sandbox-bench-")
	if err != nil {
		return nil, err
	}
	return &Run{Bin: bin, Dir: dir, Scale: scale, only: only}, nil
}

// Close removes what the run has made.
func (run *Run) Close() {
	if err := os.RemoveAll(run.Dir); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
}

// Result is what a row has come to.
type Result struct {
	Row  Row
	Pair Pair
}

// Group is a set of rows that share what they are measured with.
type Group struct {
	Rows    []Row
	measure func(context.Context, *Run) ([]Result, error)
}

// Part is rows of a group that one function measures: a pair for each, in their order. It gets what
// the group shares.
type Part[F any] struct {
	rows    []Row
	measure func(context.Context, *Run, F) ([]Pair, error)
}

// Several is a part that has these rows.
func Several[F any](rows []Row, measure func(context.Context, *Run, F) ([]Pair, error)) Part[F] {
	return Part[F]{rows, measure}
}

// Single is a part that has a single row.
func Single[F any](r Row, measure func(context.Context, *Run, F) (Pair, error)) Part[F] {
	return Part[F]{[]Row{r}, func(ctx context.Context, run *Run, with F) ([]Pair, error) {
		measured, err := measure(ctx, run, with)
		return []Pair{measured}, err
	}}
}

// Alone is a group of a single row.
func Alone(r Row, measure func(context.Context, *Run) (Pair, error)) Group {
	nothing := func(_ context.Context, _ *Run, do func(struct{}) error) error { return do(struct{}{}) }
	return Sharing(nothing, Single(r, func(ctx context.Context, run *Run, _ struct{}) (Pair, error) {
		return measure(ctx, run)
	}))
}

// Sharing is a group whose parts are measured, in their order, while within keeps open what they
// share.
func Sharing[F any](within func(context.Context, *Run, func(F) error) error, parts ...Part[F]) Group {
	var g Group
	for _, p := range parts {
		g.Rows = append(g.Rows, p.rows...)
	}
	g.measure = func(ctx context.Context, run *Run) (results []Result, err error) {
		err = within(ctx, run, func(with F) error {
			for _, p := range parts {
				if !slices.ContainsFunc(p.rows, run.Wants) {
					continue
				}
				run.now = p.rows[0].Name
				measured, err := p.measure(ctx, run, with)
				if err != nil {
					return fmt.Errorf("%s: %w", run.now, err)
				}
				for i, r := range p.rows {
					results = append(results, Result{r, measured[i]})
				}
			}
			return nil
		})
		return results, err
	}
	return g
}

// Measure measures every wanted row, and returns the results in their order, and why rows could not
// be measured.
func (run *Run) Measure(ctx context.Context, groups []Group) (results []Result, failures []error) {
	for _, g := range groups {
		var wanted []string
		for _, r := range g.Rows {
			if run.Wants(r) {
				wanted = append(wanted, r.Name)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		names := strings.Join(wanted, ", ")
		run.now = wanted[0]
		fmt.Fprintf(os.Stderr, "bench: %s\n", names)
		measured, err := g.measure(ctx, run)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", names, err))
		}
		for _, r := range measured {
			switch {
			case !run.Wants(r.Row): // it was measured with another
			case len(r.Pair.Ours.Values) > 0:
				results = append(results, r)
			case err == nil:
				failures = append(failures, fmt.Errorf("%s: no attempt succeeded", r.Row.Name))
			}
		}
	}
	return results, failures
}

// Wants reports whether the run measures a row.
func (run *Run) Wants(r Row) bool {
	return len(run.only) == 0 || slices.Contains(run.only, r.Name)
}

// Rounds is the number of rounds of a row, in a full run and in a quick one.
func (run *Run) Rounds(full, quick int) int {
	if run.Scale == ScaleQuick {
		return quick
	}
	return full
}

// Bytes is the size of a transfer, in bytes; a quick run moves an eighth.
func (run *Run) Bytes(full int64) int64 {
	if run.Scale == ScaleQuick {
		return full / 8
	}
	return full
}

// Directory makes a directory of its own for a part of the run.
func (run *Run) Directory(name string) (string, error) { return os.MkdirTemp(run.Dir, name+"-") }

// Progress prints a line about the row that is measured.
func (run *Run) Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+run.now+": "+format+"\n", args...)
}

// ErrLost marks an answer that came, and was wrong. It ends the run of a row: there is nothing to
// measure about speed.
var ErrLost = errors.New("data lost")

// Figure measures a row once on one side, in the row's unit.
type Figure = func(context.Context) (float64, error)

// Sides measures a row once on each side. Where a value comes from many requests, each of these is
// timed, too.
type Sides struct {
	Ours, Floor                 Figure
	oursRequests, floorRequests *Requests
}

// EachSide is what side makes for ours and for the floor, with the requests of each.
func EachSide[S any](ours, floor S, side func(S, *Requests) Figure) Sides {
	var took, floorTook Requests
	return Sides{Ours: side(ours, &took), Floor: side(floor, &floorTook), oursRequests: &took,
		floorRequests: &floorTook}
}

// Requests collects how long single requests of one side take, in milliseconds.
type Requests struct {
	mutex sync.Mutex
	took  []float64
}

// Time times one request. A failed one has no time.
func (r *Requests) Time(do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	r.Add(Elapsed(began))
	return nil
}

// Add adds what a request took, in milliseconds.
func (r *Requests) Add(took float64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.took = append(r.took, took)
}

// reset drops the results of the round that does not count.
func (r *Requests) reset() {
	if r != nil {
		r.took = nil
	}
}

// InTurns measures both sides of a row, in turns, after one round that does not count. Our side may
// fail: that lowers its success rate. The floor may not, and nothing may be lost.
func (run *Run) InTurns(ctx context.Context, rounds int, s Sides) (Pair, error) {
	var measured Pair
	for i := range rounds + 1 {
		value, err := s.Ours(ctx)
		if ctx.Err() != nil {
			return Pair{}, context.Cause(ctx)
		}
		if errors.Is(err, ErrLost) {
			return Pair{}, err
		}
		floor, floorErr := s.Floor(ctx)
		if floorErr != nil {
			return Pair{}, fmt.Errorf("floor: %w", floorErr)
		}
		if i == 0 && err == nil { // warm on both sides
			s.oursRequests.reset()
			s.floorRequests.reset()
			continue
		}
		measured.Floor.Add(floor)
		if err != nil {
			run.Progress("round %d: %v", i, err)
			measured.Ours.Fail()
			continue
		}
		measured.Ours.Add(value)
	}
	if s.oursRequests != nil {
		measured.Ours.Requests, measured.Floor.Requests = s.oursRequests.took, s.floorRequests.took
	}
	return measured, nil
}

// Elapsed is the time since began in milliseconds.
func Elapsed(began time.Time) float64 {
	return float64(time.Since(began)) / float64(time.Millisecond)
}

// Timed returns how long do takes, in milliseconds.
func Timed(do func() error) (float64, error) {
	began := time.Now()
	err := do()
	return Elapsed(began), err
}

// Speed is size bytes over the time since began, in MiB/s.
func Speed(size int64, began time.Time) float64 {
	return float64(size) / (1 << 20) / time.Since(began).Seconds()
}

// Pause waits for as long as that, or returns why the run has ended.
func Pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Clients is how many requests are under way at the same time where there are many.
const Clients = 16

// Concurrently calls do for 0 to count-1, a few at the same time, and returns the first error.
func Concurrently(ctx context.Context, count int, do func(context.Context, int) error) error {
	return AtOnce(ctx, count, Clients, do)
}

// AtOnce is Concurrently with so many at the same time.
func AtOnce(ctx context.Context, count, atOnce int, do func(context.Context, int) error) error {
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

// Lost marks a difference between what was sent and what came.
func Lost(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}
