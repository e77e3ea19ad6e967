package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// TestMemoryPressure: while the machine has little memory, sandboxes that are to go to the disk do
// so before their time, and the one first that has slept longest. Others stay.
func TestMemoryPressure(t *testing.T) {
	const unknown, untilOne = -1, -2 // percentages
	m, want := hibernating(t, "gvisor")
	var percent atomic.Int64
	percent.Store(50)
	m.options.AvailableMemory = func() (float64, error) {
		switch got := percent.Load(); {
		case got == unknown:
			return 0, errors.New("no such file")
		case got == untilOne && m.engine.count(callHibernate) > 0:
			return 50, nil
		default:
			return float64(got), nil
		}
	}
	m.start()
	plain := m.asleep()
	long := m.createOf(hibernatingSpec("gvisor"))
	m.awaitPausedFor(long, lifecycle.ReasonIdle)
	short := m.createOf(hibernatingSpec("gvisor"))
	m.awaitPausedFor(short, lifecycle.ReasonIdle)
	percent.Store(5)
	m.host.RelieveMemory() // those that have only begun to sleep stay
	m.clock.advance(time.Minute)
	for _, enough := range []int64{unknown, 10, 50} {
		percent.Store(enough)
		m.host.RelieveMemory()
	}
	if got := m.engine.count(callHibernate); got != 0 {
		t.Errorf("with enough memory %d were brought to the disk", got)
	}
	percent.Store(untilOne)
	m.host.RelieveMemory()
	m.awaitPausedFor(long, want)
	for _, id := range []string{plain, short} {
		if got := m.engine.status(container(id)); got != engine.StatusFrozen {
			t.Errorf("a container that is to stay in memory is %s", got)
		}
	}
	percent.Store(5)
	m.host.RelieveMemory()
	m.awaitPausedFor(short, want)
	percent.Store(50)
	must(t, m.host.Wake(t.Context(), short))
	m.awaitPausedFor(short, lifecycle.ReasonIdle)
	m.host.Sweep()
	if got := m.engine.status(container(short)); got != engine.StatusFrozen {
		t.Errorf("the sandbox that was woken since is %s", got)
	}
}

// TestMemoryPressureRefused: one that cannot be brought to the disk is left alone for a while, and
// one that is to be woken soon stays in memory.
func TestMemoryPressureRefused(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.options.AvailableMemory = func() (float64, error) { return 5, nil }
	m.start()
	s := hibernatingSpec("gvisor")
	s.Lifecycle.Idle = time.Second // the time is asked for before
	soon := m.createOf(s)
	m.await(soon, lifecycle.StateRunning)
	m.engine.changeRest(container(soon), func(r *memoryRest) { r.wakeAt = m.clock.now().Add(80 * time.Second) })
	m.awaitPausedFor(soon, lifecycle.ReasonIdle)
	id := m.createOf(hibernatingSpec("gvisor"))
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	m.clock.advance(35 * time.Second)
	m.engine.failBefore(callHibernate, func(context.Context, string) error { return fmt.Errorf("%w: it is full", engine.ErrNoRoom) })
	for range 3 {
		m.host.RelieveMemory()
	}
	if got := m.engine.count(callHibernate); got != 1 {
		t.Errorf("%d attempts were made", got)
	}
	m.engine.failBefore(callHibernate, nil)
	m.clock.advance(30 * time.Second)
	m.host.RelieveMemory()
	m.awaitPausedFor(id, want)
}
