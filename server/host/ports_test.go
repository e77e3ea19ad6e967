package host_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// connects waits until a connection to a published port of the sandbox waits for it.
func (m *machine) connects(id string) {
	m.t.Helper()
	wait.Until(m.t, "a connection to the published port waits", func() bool { return m.engine.connect(container(id)) })
}

// holdsNone waits until no connection to a published port of the sandbox waits any more.
func (m *machine) holdsNone(id string) {
	m.t.Helper()
	wait.Until(m.t, "connections go to the sandbox", func() bool { return m.engine.portHolds(container(id)) == 0 })
}

// TestConnectionWakesFromDisk: a connection to a published port wakes a sandbox that is on the
// disk, also in a service that was started since. Once it runs, later ones go to it.
func TestConnectionWakesFromDisk(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		id := m.onDisk(class, want)
		runs := m.host.RunsOf(id)
		m.connects(id)
		m.awaitRuns(id, runs+1)
		m.holdsNone(id)
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.toDisk(id, want)
		m.host.Close()
		m.start()
		m.connects(id)
		m.awaitRuns(id, 1)
		m.holdsNone(id)
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.toDisk(id, want)
		must(t, m.host.Delete(t.Context(), id))
		m.await(id, lifecycle.StateTerminated)
		m.holdsNone(id)
	})
}

// TestConnectionDuringHibernation: a connection that comes while the sandbox is being brought to
// the disk wakes it.
func TestConnectionDuringHibernation(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, _ := hibernating(t, class)
		m.start()
		id := m.createOf(hibernatingSpec(class))
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		runs := m.host.RunsOf(id)
		hold := newGate()
		m.engine.failBefore(map[string]string{"": callSuspend, "gvisor": callHibernate}[class], hold.fault)
		m.clock.advance(untilDisk)
		m.host.Sweep()
		hold.await(t)
		if !m.engine.connect(container(id)) {
			t.Fatal("connections are refused while the processes end")
		}
		close(hold.open)
		m.awaitRuns(id, runs+1)
		m.holdsNone(id)
	})
}

// TestConnectionWakesAgain: after a wake that has failed, the next connection tries again.
func TestConnectionWakesAgain(t *testing.T) {
	m, want := hibernating(t, "")
	m.start()
	id := m.onDisk("", want)
	runs := m.host.RunsOf(id)
	m.engine.failBefore(callStart, func(context.Context, string) error { return errors.New("the image is gone") })
	starts := m.engine.count(callStart)
	m.connects(id)
	wait.Until(t, "a start was tried", func() bool { return m.engine.count(callStart) > starts })
	m.awaitPausedFor(id, want)
	m.clock.advance(time.Second)
	m.engine.failBefore(callStart, nil)
	m.connects(id)
	m.awaitRuns(id, runs+1)
}

// TestConnectionsThatDoNotWake: none waits for a sandbox that requests do not wake, or that a
// client has paused.
func TestConnectionsThatDoNotWake(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		s := hibernatingSpec(class)
		s.Lifecycle.AutoResume = false
		closed := m.createOf(s)
		m.awaitPausedFor(closed, lifecycle.ReasonIdle)
		m.toDisk(closed, want)
		if m.engine.count(callHoldConnections) > 0 {
			t.Error("connections wait for a sandbox that they do not wake")
		}
		wakes := true
		_, err := m.host.UpdateLifecycle(t.Context(), closed, lifecycle.LifecycleChange{AutoResume: &wakes}, 0)
		must(t, err)
		m.connects(closed)
		m.awaitRuns(closed, 2)

		paused := m.onDisk(class, want)
		must(t, m.host.Pause(t.Context(), paused))
		m.holdsNone(paused)
	})
}

// TestConnectionsRefused: a sandbox whose ports cannot be kept goes to the disk all the same.
// Connections wake it once they can be kept.
func TestConnectionsRefused(t *testing.T) {
	m, want := hibernating(t, "")
	m.start()
	m.engine.failBefore(callHoldConnections, func(context.Context, string) error { return errors.New("too many open files") })
	id := m.onDisk("", want)
	runs := m.host.RunsOf(id)
	if m.engine.connect(container(id)) {
		t.Error("a connection waits at a port that could not be kept")
	}
	m.engine.failBefore(callHoldConnections, nil)
	m.clock.advance(time.Minute)
	_, err := m.host.UpdateMetadata(t.Context(), id, map[string]*string{}) // the actor's timer goes by the time of the host
	must(t, err)
	m.connects(id)
	m.awaitRuns(id, runs+1)
}

// TestConnectionsDuringResume: connections wait on while a sandbox whose processes are ending is
// resumed by a client.
func TestConnectionsDuringResume(t *testing.T) {
	m, _ := hibernating(t, "")
	m.start()
	id := m.createOf(hibernatingSpec(""))
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	runs := m.host.RunsOf(id)
	hold := newGate()
	m.engine.failBefore(callSuspend, hold.fault)
	m.clock.advance(untilDisk)
	m.host.Sweep()
	hold.await(t)
	must(t, m.host.Resume(t.Context(), id))
	m.await(id, lifecycle.StateResuming)
	if !m.engine.connect(container(id)) {
		t.Error("connections are refused while a sandbox is resumed")
	}
	close(hold.open)
	m.awaitRuns(id, runs+1)
	m.holdsNone(id)
}
