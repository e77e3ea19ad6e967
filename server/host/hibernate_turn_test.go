package host_test

import (
	"context"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestHibernateOneAtATime: sandboxes go to the disk one after the other. One that waits sleeps in
// memory, and is woken, paused or deleted from there at once.
func TestHibernateOneAtATime(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		call := map[string]string{"": callSuspend, "gvisor": callHibernate}[class]
		ids := make([]string, 5)
		for i := range ids {
			ids[i] = m.createOf(hibernatingSpec(class))
			m.awaitPausedFor(ids[i], lifecycle.ReasonIdle)
		}
		hold := newGate()
		m.engine.failBefore(call, hold.fault)
		m.clock.advance(untilDisk)
		m.host.Sweep()
		hold.await(t)
		waits := func(number int) {
			t.Helper()
			wait.Until(t, "the others wait", func() bool { return m.host.WaitingForDisk() == number }, func() any { return m.host.WaitingForDisk() })
		}
		waits(4)
		var first string
		var others []string
		for _, id := range ids {
			if m.host.RecordOf(id).Hibernation == "" {
				others = append(others, id)
			} else {
				first = id
			}
		}
		if len(others) != 4 || m.engine.count(call) != 1 {
			t.Fatalf("%d wait, and %d calls were made", len(others), m.engine.count(call))
		}
		// What wakes one that waits finds it in memory.
		hours := lifecycle.LifecycleChange{Hibernate: new(lifecycle.MaxHibernate)}
		for _, id := range others[:2] {
			_, err := m.host.UpdateLifecycle(t.Context(), id, hours, 0)
			must(t, err)
			waits(3)
			_, err = m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{Hibernate: new(untilDisk)}, 0)
			must(t, err)
			waits(4)
		}
		runs := m.host.RunsOf(others[0])
		m.engine.packet(container(others[0]))
		m.awaitRuns(others[0], runs+1)
		must(t, m.host.Wake(t.Context(), others[1]))
		must(t, m.host.Pause(t.Context(), others[2]))
		waits(1)
		must(t, m.host.Delete(t.Context(), others[3]))
		m.await(others[3], lifecycle.StateTerminated)
		waits(0)
		if got := m.engine.count(call); got != 1 || m.engine.status(container(others[2])) != engine.StatusFrozen {
			t.Errorf("%d calls were made, and one that a client has paused is %s", got, m.engine.status(container(others[2])))
		}
		close(hold.open)
		m.awaitPausedFor(first, want)
	})
}

// TestHibernatePackets: packets that processes send and get while they are being ended do not wake
// the sandbox. Those to one that has stayed in memory do.
func TestHibernatePackets(t *testing.T) {
	m, want := hibernating(t, "")
	m.start()
	id := m.createOf(hibernatingSpec(""))
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	packet := func() {
		m.engine.packet(container(id)) // the answer to what a process sends when it gets SIGTERM
	}
	m.engine.failBefore(callSuspend, func(context.Context, string) error {
		packet()
		return engine.ErrNoRoom
	})
	runs := m.host.RunsOf(id)
	m.clock.advance(untilDisk)
	m.host.Sweep()
	wait.Until(t, "it has stayed in memory", func() bool {
		return m.engine.count(callSuspend) == 1 && m.host.RecordOf(id).Hibernation == "" && m.engine.packetWatches(container(id)) == 1
	})
	if got := m.host.RunsOf(id); got != runs {
		t.Errorf("it was woken by itself")
	}
	packet()
	m.awaitRuns(id, runs+1)
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	runs = m.host.RunsOf(id)
	m.engine.failBefore(callSuspend, func(context.Context, string) error {
		packet()
		return nil
	})
	m.engine.failAfter(callSuspend, func(context.Context, string) error {
		packet()
		return nil
	})
	m.toDisk(id, want)
	m.host.Sweep()
	must(t, m.host.Delete(t.Context(), m.running())) // some time later
	if got := m.host.RunsOf(id); got != runs || m.get(id).Status.Reason != want {
		t.Errorf("it was woken by itself: %+v", m.get(id).Status)
	}
	must(t, m.host.Wake(t.Context(), id))
	m.awaitRuns(id, runs+1)
}
