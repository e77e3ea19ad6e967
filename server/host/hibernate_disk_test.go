package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestRollbackRefusedOnDisk: a sandbox on the disk whose rollback is refused sleeps there as
// before, and the next request wakes it. One that a client has paused stays that.
func TestRollbackRefusedOnDisk(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		id := m.createOf(hibernatingSpec(class))
		m.await(id, lifecycle.StateRunning)
		kept := m.keep(id)
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.toDisk(id, want)
		m.engine.failBefore(callRollback, func(context.Context, string) error { return fmt.Errorf("%w: it is full", engine.ErrNoRoom) })
		must(t, m.host.Rollback(t.Context(), id, kept.ID))
		wait.Until(t, "the rollback is refused", func() bool {
			status := m.get(id).Status
			return status.State == lifecycle.StatePaused && strings.Contains(status.Message, "it is full")
		}, func() any { return m.get(id).Status })
		if status := m.get(id).Status; status.Reason != want || !strings.Contains(status.Message, "on the disk") {
			t.Errorf("after a rollback that is refused it is %+v", status)
		}
		runs := m.host.RunsOf(id)
		must(t, m.host.Wake(t.Context(), id))
		m.awaitRuns(id, runs+1)

		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.toDisk(id, want)
		must(t, m.host.Pause(t.Context(), id))
		must(t, m.host.Rollback(t.Context(), id, kept.ID))
		m.awaitPausedFor(id, lifecycle.ReasonRollbackFailed)
		if err := m.host.Wake(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
			t.Errorf("a request to a sandbox that a client has paused: %v", err)
		}
		m.engine.failBefore(callRollback, nil)
		must(t, m.host.Rollback(t.Context(), id, kept.ID))
		m.await(id, lifecycle.StateRunning)
		if got := m.host.RecordOf(id); got.Hibernation != "" || got.Sandbox.SnapshotID != kept.ID {
			t.Errorf("after a rollback the record is %+v", got)
		}
	})
}

// TestRollbackDuringHibernation: a rollback does not wait until the processes, which it ends, are
// written to the disk.
func TestRollbackDuringHibernation(t *testing.T) {
	m, _ := hibernating(t, "gvisor")
	m.start()
	id := m.createOf(hibernatingSpec("gvisor"))
	m.await(id, lifecycle.StateRunning)
	kept := m.keep(id)
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	hold := newGate()
	m.engine.failBefore(callHibernate, hold.fault)
	m.clock.advance(untilDisk)
	m.host.Sweep()
	hold.await(t)
	runs := m.host.RunsOf(id)
	must(t, m.host.Rollback(t.Context(), id, kept.ID))
	m.awaitRuns(id, runs+1)
}

// TestWakeFromDiskFails: a sandbox that cannot be brought back from the disk for a while stays
// there, the request says so, and a later one wakes it.
func TestWakeFromDiskFails(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		id := m.onDisk(class, want)
		runs := m.host.RunsOf(id)
		m.engine.failBefore(callStart, func(context.Context, string) error { return errors.New("the image is gone") })
		for range 2 {
			err := m.host.Wake(t.Context(), id)
			if kindOf(err) != lifecycle.KindUnavailable || !strings.Contains(err.Error(), "the image is gone") {
				t.Fatalf("a request to a sandbox that cannot be woken: %v", err)
			}
			if status := m.get(id).Status; status.State != lifecycle.StatePaused || status.Reason != want || !strings.Contains(status.Message, "the image is gone") {
				t.Errorf("after a wake that has failed it is %+v", status)
			}
			m.clock.advance(time.Second)
			m.host.Sweep()
		}
		m.engine.failBefore(callStart, nil)
		must(t, m.host.Wake(t.Context(), id))
		m.awaitRuns(id, runs+1)
	})
}

// TestPauseDuringHibernation: a client that pauses a sandbox which is being brought to the disk has
// its processes stay in memory, or else learns from the status that they have ended.
func TestPauseDuringHibernation(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, _ := hibernating(t, class)
		m.start()
		id := m.createOf(hibernatingSpec(class))
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		hold := newGate()
		m.engine.failBefore(map[string]string{"": callSuspend, "gvisor": callHibernate}[class], hold.fault)
		m.clock.advance(untilDisk)
		m.host.Sweep()
		hold.await(t)
		must(t, m.host.Pause(t.Context(), id))
		box, words := engine.StatusFrozen, "paused by a client"
		if class == "" {
			close(hold.open)
			box, words = engine.StatusStopped, "its processes have ended"
		}
		wait.Until(t, "it is paused", func() bool {
			record := m.host.RecordOf(id)
			status := record.Sandbox.Status
			return record.Hibernation != lifecycle.HibernationBegun && status.Reason == lifecycle.ReasonUserPause && strings.Contains(status.Message, words)
		}, func() any { return m.get(id).Status })
		if got := m.engine.status(container(id)); got != box {
			t.Errorf("the container is %s", got)
		}
		if err := m.host.Wake(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
			t.Errorf("a request to a sandbox that a client has paused: %v", err)
		}
		runs := m.host.RunsOf(id)
		must(t, m.host.Resume(t.Context(), id))
		m.awaitRuns(id, runs+1)
	})
}

// TestWakeFromDiskIsDurable: the record of a sandbox that was brought back from the disk outlasts a
// loss of power.
func TestWakeFromDiskIsDurable(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.start()
	id := m.onDisk("gvisor", want)
	_, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdleNone)}, 0)
	must(t, err)
	states := func() []string {
		m.store.mu.Lock()
		defer m.store.mu.Unlock()
		return slices.Clone(m.store.unsynced[id])
	}
	before := states()
	must(t, m.host.Wake(t.Context(), id))
	m.await(id, lifecycle.StateRunning)
	if after := states(); !slices.Equal(after, before) {
		t.Errorf("saved without a sync: %v", after[len(before):])
	}
}

// TestRequestDuringResume: a request that comes while a client's resume brings a sandbox back from
// the disk waits for it.
func TestRequestDuringResume(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.start()
	id := m.onDisk("gvisor", want)
	hold := newGate()
	m.engine.failBefore(callStart, hold.fault)
	must(t, m.host.Resume(t.Context(), id))
	hold.await(t)
	woken := make(chan error, 1)
	go func() { woken <- m.host.Wake(t.Context(), id) }()
	close(hold.open)
	must(t, wait.For(t, "the request", woken))
}
