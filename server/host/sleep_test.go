package host_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// sleepingSpec is a spec of a sandbox that sleeps soon.
func sleepingSpec() lifecycle.Spec {
	s := spec()
	settings := lifecycle.DefaultLifecycle()
	settings.OnIdle, settings.Idle = lifecycle.OnIdlePause, lifecycle.MinIdle
	s.Lifecycle = &settings
	return s
}

func (m *machine) createOf(s lifecycle.Spec) string {
	m.t.Helper()
	sandbox, err := m.host.Create(context.Background(), s, lifecycle.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return sandbox.ID
}

// asleep returns a sandbox that sleeps.
func (m *machine) asleep() string {
	m.t.Helper()
	id := m.createOf(sleepingSpec())
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
	return id
}

// awaitWoken waits until the sandbox has been Running once more than before.
func (m *machine) awaitRuns(id string, runs int64) {
	m.t.Helper()
	wait.Until(m.t, "sandbox "+id+" has been woken", func() bool { return m.host.RunsOf(id) >= runs }, func() any { return m.get(id).Status })
}

// TestSleepAndWake: a sandbox that nothing keeps awake is frozen, and wakes for a packet, for a
// request and at the time that it has asked for.
func TestSleepAndWake(t *testing.T) {
	m := newMachine(t).start()
	id := m.asleep()
	if got := m.engine.status(container(id)); got != engine.StatusFrozen {
		t.Fatalf("the container is %s", got)
	}
	wakes := map[string]func(){
		"a packet":  func() { m.engine.packet(container(id)) },
		"a request": func() { must(t, m.host.Wake(t.Context(), id)) },
		"a resume":  func() { must(t, m.host.Resume(t.Context(), id)) },
		"a busy that was on its way": func() { // and that the service reads only now
			m.engine.changeRest(container(id), func(r *memoryRest) {
				for stream := range r.streams {
					stream.write(map[string]any{"type": "busy", "kind": "request"})
				}
			})
		},
		"the end of the report": func() { m.engine.cutStreams(container(id)) },
	}
	for name, wake := range wakes {
		t.Run(name, func(t *testing.T) {
			m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
			runs := m.host.RunsOf(id)
			wake()
			m.awaitRuns(id, runs+1)
		})
	}
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
	if got := m.engine.packetWatches(container(id)); got != 1 {
		t.Errorf("%d watches of packets, want 1", got)
	}
	must(t, m.host.Delete(t.Context(), id))
	wait.Until(t, "nothing watches packets", func() bool { return m.engine.packetWatches(container(id)) == 0 })
}

// TestWakeAt: a sandbox is woken at the time that a program in it has asked for, also by a service
// that was started since.
func TestWakeAt(t *testing.T) {
	m := newMachine(t)
	first, err := m.open()
	must(t, err)
	m.host = first
	id := m.create()
	m.await(id, lifecycle.StateRunning)
	at := m.clock.now().Add(time.Hour - time.Minute).UTC().Truncate(time.Second)
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = at })
	m.letSleep(id)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
	if holds, err := m.host.Holds(t.Context(), id); err != nil || !holds.WakeAt.Equal(at) {
		t.Errorf("holds of one that sleeps: %+v (%v), want to be woken at %v", holds, err, at)
	}
	first.Close()
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = time.Time{} })
	m.start()
	m.clock.advance(time.Hour - time.Minute)
	m.host.Sweep()
	m.awaitRuns(id, 1)
}

// letSleep has a sandbox fall asleep when it is idle.
func (m *machine) letSleep(id string) {
	m.t.Helper()
	_, err := m.host.UpdateLifecycle(context.Background(), id, lifecycle.LifecycleChange{
		OnIdle: new(lifecycle.OnIdlePause), Idle: new(lifecycle.MinIdle),
	}, 0)
	must(m.t, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLifecycleEvents: each change of the lifecycle has an event; a request that changes nothing
// has none.
func TestLifecycleEvents(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	for range 2 {
		m.letSleep(id)
	}
	page, err := m.store.Events(t.Context(), lifecycle.EventQuery{SandboxID: id, Limit: 1000})
	must(t, err)
	var changes []lifecycle.Lifecycle
	for _, event := range page.Events {
		if event.Type == lifecycle.EventLifecycle {
			changes = append(changes, *event.Lifecycle)
		}
	}
	want := lifecycle.DefaultLifecycle()
	want.OnIdle, want.Idle = lifecycle.OnIdlePause, lifecycle.MinIdle
	if !slices.Equal(changes, []lifecycle.Lifecycle{want}) {
		t.Errorf("the changes are %+v, want only %+v", changes, want)
	}
}

// TestPausedByAClient: what a client has paused is not woken, also when it slept then.
func TestPausedByAClient(t *testing.T) {
	m := newMachine(t).start()
	id := m.asleep()
	must(t, m.host.Pause(t.Context(), id))
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonUserPause)
	if err := m.host.Wake(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("wake: %v", err)
	}
	wait.Until(t, "nothing watches packets", func() bool { return m.engine.packetWatches(container(id)) == 0 })
	m.engine.packet(container(id))
	if runs := m.host.RunsOf(id); runs != 1 {
		t.Errorf("it has been Running %d times", runs)
	}
	must(t, m.host.Resume(t.Context(), id))
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
}

// TestNoAutoResume: without it nothing hears packets, and only a resume wakes.
func TestNoAutoResume(t *testing.T) {
	m := newMachine(t).start()
	s := sleepingSpec()
	s.Lifecycle.AutoResume = false
	id := m.createOf(s)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
	if err := m.host.Wake(t.Context(), id); kindOf(err) != lifecycle.KindConflict || m.engine.packetWatches(container(id)) != 0 {
		t.Errorf("wake: %v, with %d watches", err, m.engine.packetWatches(container(id)))
	}
	_, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{AutoResume: new(true)}, 0)
	must(t, err)
	wait.Until(t, "packets are watched", func() bool { return m.engine.packetWatches(container(id)) == 1 })
	m.engine.packet(container(id))
	m.awaitRuns(id, 2)
}

// TestIdleDelete: a sandbox ends when nothing keeps it awake, and not before.
func TestIdleDelete(t *testing.T) {
	m := newMachine(t).start()
	s := sleepingSpec()
	s.Lifecycle.OnIdle = lifecycle.OnIdleDelete
	id := m.createOf(s)
	status := m.await(id, lifecycle.StateTerminated)
	if status.Reason != lifecycle.ReasonIdle {
		t.Errorf("reason: %s", status.Reason)
	}
}

// TestKeptAwake: what execd reports as busy is not frozen, and something that takes execd's place
// cannot have the sandbox frozen and thawed all the time.
func TestKeptAwake(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	if !m.engine.begin(container(id)) {
		t.Fatal("the container does not run")
	}
	m.letSleep(id)
	other := m.asleep() // has taken as long
	holds, err := m.host.Holds(t.Context(), id)
	if err != nil || len(holds.Holds) != 1 || holds.Holds[0].Kind != "command" || m.host.RunsOf(id) != 1 || m.engine.count(callFreeze) != 1 {
		t.Errorf("holds %+v (%v), %d times Running, %d freezes", holds, err, m.host.RunsOf(id), m.engine.count(callFreeze))
	}
	m.engine.end(container(id))
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)

	m.engine.changeRest(container(other), func(r *memoryRest) { r.idleAtOnce = true })
	began, runs := time.Now(), m.host.RunsOf(other)
	for range 3 {
		must(t, m.host.Wake(t.Context(), other))
		m.await(other, lifecycle.StatePaused)
	}
	if took, woken := time.Since(began), m.host.RunsOf(other)-runs; took < time.Duration(woken)*lifecycle.MinIdle {
		t.Errorf("it slept and woke %d times in %v", woken, took)
	}
}

// TestTimeoutPause: at its expiry the sandbox is paused, has its time again once it is woken, and
// ends when the longest time to live is over.
func TestTimeoutPause(t *testing.T) {
	m := newMachine(t).start()
	s := spec()
	s.Lifecycle = new(lifecycle.DefaultLifecycle())
	s.Lifecycle.OnTimeout = lifecycle.OnTimeoutPause
	sandbox, err := m.host.Create(t.Context(), s, lifecycle.CreateOptions{Bounds: lifecycle.Bounds{MaxTimeout: 10 * time.Hour}})
	must(t, err)
	id := sandbox.ID
	m.await(id, lifecycle.StateRunning)
	expire := func(after time.Duration) {
		m.clock.advance(after)
		m.host.Sweep()
	}
	expire(time.Hour)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonTimeout)
	if left := m.get(id).ExpiresAt.Sub(m.clock.now()).Round(time.Hour); left != 10*time.Hour {
		t.Errorf("it lives for %v more, want 10 h", left)
	}
	wait.Until(t, "packets are watched", func() bool { return m.engine.packetWatches(container(id)) == 1 })
	m.engine.packet(container(id))
	m.await(id, lifecycle.StateRunning)
	if left := m.get(id).ExpiresAt.Sub(m.clock.now()).Round(time.Hour); left != time.Hour {
		t.Errorf("once woken it lives for %v more, want 1 h", left)
	}
	must(t, m.host.Pause(t.Context(), id))
	expire(time.Hour)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonUserPause)
	wait.Until(t, "its expiry is later", func() bool { return m.get(id).ExpiresAt.After(m.clock.now().Add(9 * time.Hour)) })
	expire(10 * time.Hour)
	if status := m.await(id, lifecycle.StateTerminated); status.Reason != lifecycle.ReasonExpired {
		t.Errorf("reason: %s", status.Reason)
	}
}

// TestSleepUnsupported: an engine that cannot report packets lets no sandbox sleep when it is idle.
func TestSleepUnsupported(t *testing.T) {
	m := newMachine(t)
	m.box.Traffic = nil
	m.start()
	if _, err := m.host.Create(t.Context(), sleepingSpec(), lifecycle.CreateOptions{}); kindOf(err) != lifecycle.KindUnsupported {
		t.Errorf("create: %v", err)
	}
	s := sleepingSpec()
	s.Lifecycle.OnIdle, s.Lifecycle.OnTimeout = lifecycle.OnIdleNone, lifecycle.OnTimeoutPause
	id := m.createOf(s)
	m.await(id, lifecycle.StateRunning)
	if _, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdlePause)}, 0); kindOf(err) != lifecycle.KindUnsupported {
		t.Errorf("update: %v", err)
	}
	m.clock.advance(time.Hour)
	m.host.Sweep()
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonTimeout)
	must(t, m.host.Wake(t.Context(), id))
	m.await(id, lifecycle.StateRunning)
}

// TestSleepRecovered: a sandbox sleeps on whenever the service was killed, is woken by packets
// afterwards, and by what could have come to it unseen.
func TestSleepRecovered(t *testing.T) {
	settings := *sleepingSpec().Lifecycle
	for name, tt := range map[string]struct {
		state  lifecycle.State
		reason lifecycle.Reason
		box    engine.Status
		wakes  bool // by itself
	}{
		"asleep":                          {lifecycle.StatePaused, lifecycle.ReasonIdle, engine.StatusFrozen, false},
		"decided":                         {lifecycle.StatePausing, lifecycle.ReasonIdle, engine.StatusRunning, true},
		"frozen, and not recorded":        {lifecycle.StatePausing, lifecycle.ReasonIdle, engine.StatusFrozen, true},
		"thawed, and not recorded":        {lifecycle.StatePaused, lifecycle.ReasonIdle, engine.StatusRunning, true},
		"being woken":                     {lifecycle.StateResuming, lifecycle.ReasonWoken, engine.StatusFrozen, true},
		"its time was up":                 {lifecycle.StatePausing, lifecycle.ReasonTimeout, engine.StatusRunning, false},
		"running, to be watched again":    {lifecycle.StateRunning, lifecycle.ReasonContainerRunning, engine.StatusRunning, true},
		"resumed by a client, unfinished": {lifecycle.StateResuming, lifecycle.ReasonUserResume, engine.StatusFrozen, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			r := m.record("box", tt.state)
			r.Box = "box"
			r.Sandbox.Lifecycle, r.Sandbox.Status.Reason = new(settings), tt.reason
			m.had(r, tt.box)
			r.Port = m.engine.port(container("box"))
			must(t, m.store.Save(t.Context(), r))
			m.start()
			want := lifecycle.ReasonIdle
			if tt.reason == lifecycle.ReasonTimeout {
				want = lifecycle.ReasonTimeout
			}
			if tt.wakes && tt.state != lifecycle.StateRunning {
				m.awaitRuns("box", 1)
			}
			m.awaitReason("box", lifecycle.StatePaused, want)
			wait.Until(t, "packets are watched", func() bool { return m.engine.packetWatches(container("box")) == 1 })
			runs := m.host.RunsOf("box")
			if !tt.wakes && runs != 0 {
				t.Errorf("it was woken %d times", runs)
			}
			m.engine.packet(container("box"))
			m.awaitRuns("box", runs+1)
		})
	}
}

// TestSleepNotSaved: a sandbox that could not be recorded as asleep is not frozen: a service that
// is started then could not know that it sleeps.
func TestSleepNotSaved(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.store.fail(callSave, nil)
	_, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdlePause), Idle: new(100 * time.Millisecond)}, 0)
	must(t, err)
	m.store.fail(callSave, errDisk)
	wait.Until(t, "sleeping was tried", func() bool { return m.engine.count(callWatchTraffic) > 1 })
	if m.engine.count(callFreeze) != 0 || m.get(id).Status.State != lifecycle.StateRunning {
		t.Errorf("%d freezes, %s", m.engine.count(callFreeze), m.get(id).Status.State)
	}
	m.store.fail(callSave, nil)
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonIdle)
	// A wake is in force although it cannot be saved.
	m.store.fail(callSave, errDisk)
	runs := m.host.RunsOf(id)
	m.engine.packet(container(id))
	m.awaitRuns(id, runs+1)
	m.store.fail(callSave, nil)
}

// TestOldDaemon: a sandbox whose execd does not report its rest stays Running, and its holds are
// not known.
func TestOldDaemon(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.engine.changeRest(container(id), func(r *memoryRest) { r.older = true })
	m.letSleep(id)
	if _, err := m.host.Holds(t.Context(), id); !errors.Is(err, lifecycle.ErrNoHolds) {
		t.Errorf("holds: %v", err)
	}
	m.asleep()
	if runs := m.get(id).Status.State; runs != lifecycle.StateRunning {
		t.Errorf("it is %s", runs)
	}
}

// TestLifecycleRules: what cannot be asked for.
func TestLifecycleRules(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	for _, tt := range []struct {
		change lifecycle.LifecycleChange
		kind   lifecycle.Kind
	}{
		{lifecycle.LifecycleChange{Hibernate: new(time.Millisecond)}, lifecycle.KindInvalid},
		{lifecycle.LifecycleChange{Hibernate: new(8 * 24 * time.Hour)}, lifecycle.KindInvalid},
		{lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdle("stop"))}, lifecycle.KindInvalid},
		{lifecycle.LifecycleChange{OnTimeout: new(lifecycle.OnTimeout("stop"))}, lifecycle.KindInvalid},
		{lifecycle.LifecycleChange{Idle: new(time.Millisecond)}, lifecycle.KindInvalid},
		{lifecycle.LifecycleChange{Idle: new(48 * time.Hour)}, lifecycle.KindInvalid},
	} {
		if _, err := m.host.UpdateLifecycle(t.Context(), id, tt.change, 0); kindOf(err) != tt.kind {
			t.Errorf("%+v: %v", tt.change, err)
		}
	}
	if m.get(id).Lifecycle != nil {
		t.Errorf("it has %+v", m.get(id).Lifecycle)
	}
	must(t, m.host.Delete(t.Context(), id))
	m.await(id, lifecycle.StateTerminated)
	if _, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{}, 0); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("of one that has ended: %v", err)
	}
	if _, err := m.host.Holds(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("holds of one that has ended: %v", err)
	}
}
