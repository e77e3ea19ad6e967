package host_test

import (
	"context"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestActorWaitsForTheWake: while the engine takes long to thaw a sandbox whose time to be woken
// has come, its actor has nothing to do.
func TestActorWaitsForTheWake(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = m.clock.now().Add(30 * time.Minute) })
	m.letSleep(id)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = time.Time{} })
	slow := newGate()
	m.engine.failBefore(callThaw, slow.fault)
	m.clock.advance(31 * time.Minute)
	m.host.Sweep()
	slow.await(t)
	if until := m.host.UntilDueOf(id); until < 20*time.Minute {
		t.Errorf("the actor has something to do in %v", until)
	}
	close(slow.open)
	m.awaitRuns(id, 2)
}

// TestSettingsOfASandboxThatFallsAsleep: a change of the settings, while the sandbox is being
// frozen, loses nothing that the sandbox has written before.
func TestSettingsOfASandboxThatFallsAsleep(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	slow := newGate()
	m.engine.failBefore(callFreeze, slow.fault)
	m.letSleep(id)
	slow.await(t)
	_, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{Idle: new(time.Hour)}, 0)
	must(t, err)
	m.engine.changeRest(container(id), func(r *memoryRest) {
		for stream := range r.streams {
			stream.write(map[string]any{"type": "busy", "kind": "request"})
		}
	})
	close(slow.open)
	m.awaitRuns(id, 2)
	m.await(id, lifecycle.StateRunning)
}

// TestRenewedWhileItSleeps: the time that a client gives to a sandbox whose time was up holds, also
// once it is woken.
func TestRenewedWhileItSleeps(t *testing.T) {
	m := newMachine(t).start()
	s := spec()
	s.Lifecycle = new(lifecycle.DefaultLifecycle())
	s.Lifecycle.OnTimeout = lifecycle.OnTimeoutPause
	sandbox, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{Bounds: lifecycle.Bounds{MaxTimeout: 2 * time.Hour}})
	must(t, err)
	id := sandbox.ID
	m.await(id, lifecycle.StateRunning)
	m.clock.advance(time.Hour)
	m.host.Sweep()
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonTimeout)
	wait.Until(t, "packets are watched", func() bool { return m.engine.packetWatches(container(id)) == 1 })
	want, err := m.host.Renew(t.Context(), id, m.clock.now().Add(10*time.Hour))
	must(t, err)
	m.engine.packet(container(id))
	m.await(id, lifecycle.StateRunning)
	if got := m.get(id).ExpiresAt; !got.Equal(want) {
		t.Errorf("once woken it ends at %v, and the client has renewed it until %v", got, want)
	}
}

// TestWakeAtOnce: a sandbox that wants to be woken as soon as it sleeps is not frozen.
func TestWakeAtOnce(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt, r.idleAtOnce = m.clock.now(), true })
	m.letSleep(id)
	wait.Until(t, "sleeping was tried", func() bool {
		m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = m.clock.now().Add(500 * time.Millisecond) })
		return m.engine.count(callWatchTraffic) > 2
	})
	if freezes := m.engine.count(callFreeze); freezes != 0 {
		t.Errorf("%d freezes", freezes)
	}
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = time.Time{} })
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
}

// TestSleepRefused: a sandbox that is to fall asleep and cannot be frozen runs on.
func TestSleepRefused(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.failBefore(callFreeze, func(context.Context, string) error {
		m.clock.advance(16 * time.Second)
		if m.engine.count(callFreeze) <= 5 { // for more than a minute
			return errRefused
		}
		return nil
	})
	m.letSleep(id)
	m.awaitRuns(id, 2)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle) // then it can
}
