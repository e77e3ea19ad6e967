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
	bin     string
	dir     string // temporary, for everything that the run makes
	scale   size
	only    []string // names of rows; empty is all
	results map[string]pair

	floorProgram string // path, once it is built
}

// size says how much a run measures.
type size string

const (
	scaleFull  size = "full"
	scaleQuick size = "quick" // fewer rounds and less data
	scaleGate  size = "gate"  // as many rounds, fewer stored sandboxes
)

// group is a set of rows that share what they are measured with.
type group struct {
	rows    []string
	measure func(*bench, context.Context) error
}

func groups() []group {
	return []group{
		{[]string{rowCommand, rowFirstByte, rowStop}, (*bench).measureCommands},
		{[]string{rowCell, rowStateless, rowStatelessMany, rowInterrupt}, (*bench).measureCells},
		{[]string{rowLines, rowStream}, (*bench).measureStreams},
		{[]string{rowUpload, rowDownload}, (*bench).measureTransfers},
		{[]string{rowSearch}, (*bench).measureSearch},
		{[]string{rowStart}, (*bench).measureStart},
		{[]string{rowIdle}, (*bench).measureIdle},
		{[]string{rowStreams}, (*bench).measureOpenStreams},
		{[]string{rowAfterUpload}, (*bench).measureAfterUpload},
		{[]string{rowAfterBurst}, (*bench).measureAfterBurst},
		{[]string{rowCreate, rowAccept, rowDelete, rowPause, rowFirstExpiry, rowGetBusy},
			(*bench).measureLifecycle},
		{[]string{rowCreateEgress}, (*bench).measureConfinedCreate},
		{[]string{rowCreateSpare, rowDeleteSpare}, (*bench).measureSpareCreate},
		{[]string{rowEgressSpare}, (*bench).measureConfinedSpareCreate},
		{[]string{rowGet, rowList, rowExpiry}, (*bench).measureStored},
		{[]string{rowCrowd, rowService, rowRestart}, (*bench).measureCrowd},
		{[]string{rowCreateLocal, rowCreateLocalTail, rowCreateLocalRatio, rowCreateLocalRunc, rowCreateLocalRunsc,
			rowDeleteLocal, rowPauseLocal},
			(*bench).measureLocal},
		{[]string{rowCrowdLocal}, (*bench).measureLocalCrowd},
		{[]string{rowPullLocal}, (*bench).measurePull},
		{[]string{rowE2BCreate}, (*bench).measureE2BCreate},
		{[]string{rowE2BList}, (*bench).measureE2BList},
		{[]string{rowLeague, rowLeagueStaggered, rowLeagueBurst}, (*bench).measureLeague},
		{[]string{rowWaits}, (*bench).measureWaits},
		{[]string{rowSnapshotClean, rowSnapshotSmall, rowSnapshotSmallFrozen, rowSnapshotLarge, rowSnapshotLargeFrozen},
			(*bench).measureSnapshots},
		{[]string{rowRollback}, (*bench).measureRollback},
		{[]string{rowMemorySnapshot, rowMemoryRollback}, (*bench).measureMemorySnapshots},
		{[]string{rowFork}, (*bench).measureFork},
		{[]string{rowTrajectory}, (*bench).measureTrajectory},
		{[]string{rowWake}, (*bench).measureWake},
		{[]string{rowIdleLocal, rowBusyLocal, rowSleepLocal}, (*bench).measureLocalIdle},
		{[]string{rowPool}, (*bench).measurePool},
		{[]string{rowIngressOne, rowIngressMany, rowIngressDownload, rowIngressMemory},
			(*bench).measureIngress},
		{[]string{rowEgressDNS, rowEgressNames, rowEgressPacket, rowEgressStream, rowEgressChange,
			rowEgressChangeMany, rowEgressMemory, rowEgressCPU}, (*bench).measureEgress},
	}
}

func newBench(bin string, scale size, only []string) (*bench, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sandbox-bench-")
	if err != nil {
		return nil, err
	}
	return &bench{bin: bin, dir: dir, scale: scale, only: only, results: make(map[string]pair)}, nil
}

func (b *bench) close() {
	if err := os.RemoveAll(b.dir); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
}

// beginning returns the names of the rows that begin with one of the prefixes; none without
// prefixes.
func beginning(prefixes []string) ([]string, error) {
	var names []string
	for _, prefix := range prefixes {
		before := len(names)
		for _, row := range rows() {
			if strings.HasPrefix(row.name, prefix) {
				names = append(names, row.name)
			}
		}
		if len(names) == before {
			return nil, fmt.Errorf("--only: no row begins with %q", prefix)
		}
	}
	return names, nil
}

func (b *bench) selected(name string) bool {
	return len(b.only) == 0 || slices.Contains(b.only, name)
}

// rounds is the number of rounds of a row, in a full run and in a quick one.
func (b *bench) rounds(full, quick int) int {
	if b.scale == scaleQuick {
		return quick
	}
	return full
}

// bytes is the size of a transfer, in bytes; a quick run moves an eighth.
func (b *bench) bytes(full int64) int64 {
	if b.scale == scaleQuick {
		return full / 8
	}
	return full
}

// directory makes a directory of its own for a part of the run.
func (b *bench) directory(name string) (string, error) { return os.MkdirTemp(b.dir, name+"-") }

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// measure measures every wanted row. It returns why rows could not be.
func (b *bench) measure(ctx context.Context) []error {
	var failures []error
	for _, g := range groups() {
		wanted := slices.DeleteFunc(slices.Clone(g.rows),
			func(name string) bool { return !b.selected(name) })
		if len(wanted) == 0 {
			continue
		}
		b.progress("%s", strings.Join(wanted, ", "))
		if err := g.measure(b, ctx); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", strings.Join(wanted, ", "), err))
			continue
		}
		for _, name := range wanted {
			if len(b.results[name].ours.values) == 0 {
				failures = append(failures, fmt.Errorf("%s: no attempt succeeded", name))
			}
		}
	}
	return failures
}

// errLost marks an answer that came, and was wrong. It ends the run of a row: there is nothing to
// measure about speed.
var errLost = errors.New("data lost")

// sides measures a row once on each side. The value is in the row's unit. Where it comes from many
// requests, each of these is timed, too.
type sides struct {
	ours, floor                 func(context.Context) (float64, error)
	oursRequests, floorRequests *requests
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
func (b *bench) inTurns(ctx context.Context, name string, rounds int, s sides) error {
	var result pair
	for i := range rounds + 1 {
		value, err := s.ours(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errLost) {
			return err
		}
		floor, floorErr := s.floor(ctx)
		if floorErr != nil {
			return fmt.Errorf("floor of %s: %w", name, floorErr)
		}
		if i == 0 && err == nil { // warm on both sides
			s.oursRequests.reset()
			s.floorRequests.reset()
			continue
		}
		result.floor.add(floor)
		if err != nil {
			b.progress("%s: round %d: %v", name, i, err)
			result.ours.fail()
			continue
		}
		result.ours.add(value)
	}
	if s.oursRequests != nil {
		result.ours.requests, result.floor.requests = s.oursRequests.took, s.floorRequests.took
	}
	b.results[name] = result
	return nil
}

// elapsed is the time since began in milliseconds.
func elapsed(began time.Time) float64 {
	return float64(time.Since(began)) / float64(
		time.Millisecond)
}

// speed is size bytes over the time since began, in MiB/s.
func speed(size int64, began time.Time) float64 {
	return float64(size) / (1 << 20) / time.Since(began).Seconds()
}
