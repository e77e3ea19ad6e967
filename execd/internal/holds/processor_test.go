package holds_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/execd/internal/holds"
)

// load is a sandbox that uses a part of a processor.
type load struct {
	percent atomic.Int64
	fails   atomic.Bool
	reads   atomic.Int64
	mu      sync.Mutex
	used    time.Duration // under mu, as at is
	at      time.Time
}

func (l *load) read() (time.Duration, error) {
	l.reads.Add(1)
	used := l.settle()
	if l.fails.Load() {
		return 0, errors.New("no control group")
	}
	return used, nil
}

// settle counts what was used since the last call, and returns what was used so far.
func (l *load) settle() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.at.IsZero() {
		l.used += now.Sub(l.at) * time.Duration(l.percent.Load()) / 100
	}
	l.at = now
	return l.used
}

// set changes the load. The bubble is at rest.
func (l *load) set(percent int64) {
	synctest.Wait()
	l.settle()
	l.percent.Store(percent)
}

func TestProcessorTimeIsAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l load
		r := holds.New(holds.Options{Used: l.read})
		l.set(6)
		began := time.Now()
		s := follow(t, r, 8*time.Second)
		defer s.stop()
		pass(20 * time.Second)
		s.expect(t)
		got := r.Report()
		if len(got.Held) != 1 || got.Held[0] != (holds.Held{Kind: holds.Processor, Since: began.Add(time.Second)}) || got.Idle != 0 {
			t.Errorf("the report is %+v", got)
		}
		// A hold takes the place of processor time, and nothing is measured meanwhile.
		hold := r.Begin(holds.Command, "c")
		if got := r.Report().Held; len(got) != 1 || got[0].Kind != holds.Command {
			t.Errorf("listed is %+v", got)
		}
		pass(8 * time.Second)
		before := l.reads.Load()
		pass(time.Minute)
		if reads := l.reads.Load() - before; reads != 0 {
			t.Errorf("processor time was read %d times while there was a hold", reads)
		}
		hold.End()
		l.set(5)
		pass(8*time.Second - 1)
		s.expect(t)
		pass(1)
		s.expect(t, "1m36s idle")

		// An idle sandbox that begins to compute is busy at the end of the next window.
		l.set(50)
		pass(8 * time.Second)
		s.expect(t, "1m44s busy processor")
		l.set(0)
		pass(8 * time.Second)
		s.expect(t, "1m52s idle")
	})
}

// TestWorkOfAHoldIsNoProcessorTime: what a request has used is not counted against the quiet time
// after it.
func TestWorkOfAHoldIsNoProcessorTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l load
		r := holds.New(holds.Options{Used: l.read})
		s := follow(t, r, 80*time.Millisecond)
		defer s.stop()
		for range 3 {
			hold := r.Begin(holds.Request, "")
			l.set(100)
			pass(time.Second)
			hold.End()
			l.set(0)
			pass(40 * time.Millisecond)
		}
		pass(40 * time.Millisecond)
		s.expect(t, "3.16s idle")
		// Once idle, the sandbox is looked at once in a second, however short the quiet time.
		before := l.reads.Load()
		pass(10 * time.Second)
		if reads := l.reads.Load() - before; reads > 10 {
			t.Errorf("processor time was read %d times in 10 s", reads)
		}
		s.expect(t)
	})
}

func TestProcessorTimeThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l load
		l.set(100)
		l.fails.Store(true)
		r := holds.New(holds.Options{Used: l.read})
		s := follow(t, r, time.Second)
		defer s.stop()
		pass(time.Second)
		s.expect(t, "1s idle")
	})
}
