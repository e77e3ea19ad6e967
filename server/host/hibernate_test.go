package host_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

const untilDisk = 10 * time.Minute

// hibernatingSpec is a spec of a sandbox that sleeps soon, and goes to the disk later. The class
// says whether its processes can be kept.
func hibernatingSpec(class string) lifecycle.Spec {
	s := sleepingSpec()
	s.Lifecycle.OnIdle, s.Lifecycle.Hibernate = lifecycle.OnIdleHibernate, untilDisk
	s.RuntimeClass = class
	return s
}

// hibernating returns a machine and what is expected of a sandbox of it that is on the disk.
func hibernating(t *testing.T, class string) (m *machine, want lifecycle.Reason) {
	t.Helper()
	m = newMachine(t)
	m.box.RuntimeClasses = lifecycle.RuntimeClasses{{Name: "gvisor", Handler: "runsc"}}
	if class == "" {
		return m, lifecycle.ReasonHibernatedFiles
	}
	return m, lifecycle.ReasonHibernated
}

func eachHibernation(t *testing.T, test func(t *testing.T, class string)) {
	t.Helper()
	for name, class := range map[string]string{"files": "", "processes": "gvisor"} {
		t.Run(name, func(t *testing.T) { test(t, class) })
	}
}

// awaitPausedFor waits until the sandbox is Paused for that reason.
func (m *machine) awaitPausedFor(id string, reason lifecycle.Reason) {
	m.t.Helper()
	wait.Until(m.t, fmt.Sprintf("sandbox %s is Paused, %s", id, reason), func() bool {
		status := m.get(id).Status
		return status.State == lifecycle.StatePaused && status.Reason == reason
	}, func() any { return m.get(id).Status })
}

// onDisk returns a sandbox that is on the disk.
func (m *machine) onDisk(class string, want lifecycle.Reason) string {
	m.t.Helper()
	id := m.createOf(hibernatingSpec(class))
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	m.toDisk(id, want)
	return id
}

// toDisk has the time come that a sandbox which sleeps goes to the disk.
func (m *machine) toDisk(id string, want lifecycle.Reason) {
	m.t.Helper()
	m.clock.advance(untilDisk)
	m.host.Sweep()
	m.awaitPausedFor(id, want)
	if got := m.engine.status(container(id)); got != engine.StatusStopped {
		m.t.Errorf("the container is %s", got)
	}
}

// TestHibernate: a sandbox that has slept for long is brought to the disk, also by a service that
// was started since, and wakes as any other, with its token.
func TestHibernate(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		id := m.createOf(hibernatingSpec(class))
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.clock.advance(untilDisk - time.Minute)
		m.host.Sweep()
		if status := m.get(id).Status; status.Reason != lifecycle.ReasonIdle || m.engine.status(container(id)) != engine.StatusFrozen {
			t.Errorf("before its time it is %+v", status)
		}
		token := m.host.RecordOf(id).Token
		m.host.Close()
		m.clock.advance(time.Minute)
		m.start()
		m.awaitPausedFor(id, want)
		wakes := map[string]func() error{
			"a request": func() error { return m.host.Wake(t.Context(), id) },
			"a resume":  func() error { return m.host.Resume(t.Context(), id) },
			"a restart and a request": func() error {
				m.host.Close()
				m.start()
				return m.host.Wake(t.Context(), id)
			},
		}
		for name, wake := range wakes {
			t.Run(name, func(t *testing.T) {
				if got, err := m.host.Locate(t.Context(), id, 80); err != nil || kindOf(got.Stopped) != lifecycle.KindConflict || got.Token != token || got.Daemon != "" {
					t.Errorf("port of a sandbox on the disk: %+v, %v", got, err)
				}
				wait.Until(t, "nothing watches packets", func() bool { return m.engine.packetWatches(container(id)) == 0 })
				must(t, wake())
				m.awaitRuns(id, 1)
				if got := m.host.RecordOf(id); got.Token != token || got.Hibernation != "" {
					t.Errorf("the record is %+v", got)
				}
				m.awaitPausedFor(id, lifecycle.ReasonIdle)
				m.toDisk(id, want)
			})
		}
		must(t, m.host.Delete(t.Context(), id))
		m.await(id, lifecycle.StateTerminated)
		m.awaitEmpty()
	})
}

// TestHibernateWakeAt: a sandbox on the disk is woken at the time that it has asked for, and one
// that requests do not wake only by a resume.
func TestHibernateWakeAt(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.start()
	s := hibernatingSpec("gvisor")
	s.Lifecycle.Idle = time.Second // it is asked for before
	id := m.createOf(s)
	at := m.clock.now().Add(untilDisk + 5*time.Minute).UTC().Truncate(time.Second)
	m.await(id, lifecycle.StateRunning)
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = at })
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	m.engine.changeRest(container(id), func(r *memoryRest) { r.wakeAt = time.Time{} })
	m.toDisk(id, want)
	m.clock.advance(6 * time.Minute)
	m.host.Sweep()
	m.awaitRuns(id, 2)

	closed := hibernatingSpec("gvisor")
	closed.Lifecycle.AutoResume = false
	id = m.createOf(closed)
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	m.toDisk(id, want)
	if err := m.host.Wake(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a request to a sandbox that requests do not wake: %v", err)
	}
	runs := m.host.RunsOf(id)
	must(t, m.host.Resume(t.Context(), id))
	m.awaitRuns(id, runs+1)
}

// TestHibernateStatus: the status of a sandbox says what has become of its processes.
func TestHibernateStatus(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.start()
	hold := func(id string) { // it stays Running
		_, err := m.host.UpdateLifecycle(t.Context(), id, lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdleNone)}, 0)
		must(t, err)
	}
	wakes := func(class string, disk, reason lifecycle.Reason, words string) {
		t.Helper()
		id := m.onDisk(class, disk)
		hold(id)
		if status := m.get(id).Status; status.Reason != disk || !strings.Contains(status.Message, "on the disk") {
			t.Errorf("on the disk it is %+v", status)
		}
		must(t, m.host.Wake(t.Context(), id))
		if status := m.awaitReason(id, lifecycle.StateRunning, reason); !strings.Contains(status.Message, words) {
			t.Errorf("the message is %q", status.Message)
		}
	}
	wakes("gvisor", want, lifecycle.ReasonContainerRunning, "as they were when it fell asleep")
	wakes("", lifecycle.ReasonHibernatedFiles, lifecycle.ReasonContainerRunning, "started again on its files")
	m.engine.loseMemory("the disk is damaged")
	wakes("gvisor", want, lifecycle.ReasonRestoreFailed, "the disk is damaged")
}

// TestHibernateRefused: a sandbox that cannot be brought to the disk stays in memory, is woken as
// before, and is tried again after a while.
func TestHibernateRefused(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		m, want := hibernating(t, class)
		m.start()
		call := map[string]string{"": callSuspend, "gvisor": callHibernate}[class]
		full := func(context.Context, string) error { return fmt.Errorf("%w: no room", engine.ErrNoRoom) }
		m.engine.failBefore(call, full)
		id := m.createOf(hibernatingSpec(class))
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.clock.advance(untilDisk)
		m.host.Sweep()
		attempts := func(number int) {
			t.Helper()
			wait.Until(t, "it was tried", func() bool {
				return m.engine.count(call) >= number && m.host.RecordOf(id).Hibernation == ""
			}, func() any { return m.engine.count(call) })
		}
		attempts(1)
		m.host.Sweep()
		m.clock.advance(31 * time.Second)
		m.host.Sweep()
		attempts(2)
		m.clock.advance(31 * time.Second) // the pause is longer now
		m.host.Sweep()
		must(t, m.host.Delete(t.Context(), m.running())) // some time later
		if got := m.engine.count(call); got != 2 || m.engine.status(container(id)) != engine.StatusFrozen {
			t.Errorf("after %d attempts the container is %s", got, m.engine.status(container(id)))
		}
		runs := m.host.RunsOf(id)
		m.engine.packet(container(id))
		m.awaitRuns(id, runs+1)
		m.engine.failBefore(call, nil)
		m.awaitPausedFor(id, lifecycle.ReasonIdle)
		m.toDisk(id, want)
	})
}

// TestHibernateNotSaved: a sandbox of which the record cannot say that it goes to the disk stays in
// memory.
func TestHibernateNotSaved(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.start()
	id := m.createOf(hibernatingSpec("gvisor"))
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	m.store.fail(callSave, errDisk)
	m.clock.advance(untilDisk)
	m.host.Sweep()
	must(t, func() error { _, err := m.host.Holds(t.Context(), id); return err }())
	if m.engine.count(callHibernate) != 0 {
		t.Error("it was brought to the disk")
	}
	m.store.fail(callSave, nil)
	m.toDisk(id, want)
}

// TestHibernateInterrupted: a request that comes while a sandbox is being brought to the disk is
// served: from memory while its processes are being written, on its files while they are ending.
func TestHibernateInterrupted(t *testing.T) {
	eachHibernation(t, func(t *testing.T, class string) {
		for name, wake := range map[string]func(m *machine, id string) error{
			"by a request": func(m *machine, id string) error { return m.host.Wake(t.Context(), id) },
			"by a resume":  func(m *machine, id string) error { return m.host.Resume(t.Context(), id) },
		} {
			t.Run(name, func(t *testing.T) {
				m, _ := hibernating(t, class)
				m.start()
				call := map[string]string{"": callSuspend, "gvisor": callHibernate}[class]
				hold := make(chan struct{})
				m.engine.failBefore(call, func(ctx context.Context, _ string) error {
					select {
					case <-hold:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
				id := m.createOf(hibernatingSpec(class))
				m.awaitPausedFor(id, lifecycle.ReasonIdle)
				m.clock.advance(untilDisk)
				m.host.Sweep()
				wait.Until(t, "it is being brought to the disk", func() bool { return m.engine.count(call) > 0 })
				runs := m.host.RunsOf(id)
				woken := make(chan error, 1)
				go func() { woken <- wake(m, id) }()
				if class == "" {
					wait.Until(t, "the request waits", func() bool { return m.engine.count(callInspect) > 0 })
					close(hold)
				}
				must(t, wait.For(t, "the request", woken))
				m.awaitRuns(id, runs+1)
			})
		}
	})
}

// TestHibernateRecovered: whenever the service was killed, the sandbox is in memory or on the disk
// as a whole, and wakes.
func TestHibernateRecovered(t *testing.T) {
	for name, tt := range map[string]struct {
		class    string
		state    lifecycle.State
		box      engine.Status
		restored bool // its processes are on the disk
		want     lifecycle.Reason
	}{
		"processes not written":            {"gvisor", lifecycle.StatePaused, engine.StatusFrozen, false, lifecycle.ReasonHibernated},
		"processes written, not recorded":  {"gvisor", lifecycle.StatePaused, engine.StatusStopped, true, lifecycle.ReasonHibernated},
		"processes gone with the host":     {"gvisor", lifecycle.StatePaused, engine.StatusStopped, false, lifecycle.ReasonHostRebooted},
		"processes thawed by another":      {"gvisor", lifecycle.StatePaused, engine.StatusRunning, false, ""},
		"resumed before they were written": {"gvisor", lifecycle.StateResuming, engine.StatusFrozen, false, ""},
		"resumed after they were written":  {"gvisor", lifecycle.StateResuming, engine.StatusStopped, true, ""},
		"files, not begun":                 {"", lifecycle.StatePaused, engine.StatusFrozen, false, lifecycle.ReasonHibernatedFiles},
		"files, ending":                    {"", lifecycle.StatePaused, engine.StatusRunning, false, lifecycle.ReasonHibernatedFiles},
		"files, ended":                     {"", lifecycle.StatePaused, engine.StatusStopped, false, lifecycle.ReasonHibernatedFiles},
		"files, resumed":                   {"", lifecycle.StateResuming, engine.StatusFrozen, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := hibernating(t, tt.class)
			r := m.record("box", tt.state)
			r.Box, r.Hibernation, r.Sandbox.Lifecycle = "box", lifecycle.HibernationBegun, hibernatingSpec(tt.class).Lifecycle
			r.Sandbox.Status.Reason = lifecycle.ReasonIdle
			if tt.state == lifecycle.StateResuming {
				r.Sandbox.Status.Reason = lifecycle.ReasonUserResume
			}
			if tt.class != "" {
				r.Runtime = "runsc"
			}
			m.had(r, tt.box)
			if tt.restored {
				m.engine.happen(container("box"), engine.EventExited, func(c *engine.Container) { c.Restored = true })
			}
			r.Port = m.engine.port(container("box"))
			must(t, m.store.Save(t.Context(), r))
			m.start()
			if tt.want == "" {
				m.awaitRuns("box", 1)
				return
			}
			m.awaitPausedFor("box", tt.want)
			if tt.want == lifecycle.ReasonHostRebooted {
				return
			}
			must(t, m.host.Wake(t.Context(), "box"))
			m.awaitRuns("box", 1)
		})
	}
}

// TestHibernateSettings: settings that are changed while the sandbox sleeps hold at once.
func TestHibernateSettings(t *testing.T) {
	m, want := hibernating(t, "gvisor")
	m.start()
	id := m.createOf(hibernatingSpec("gvisor"))
	m.awaitPausedFor(id, lifecycle.ReasonIdle)
	set := func(change lifecycle.LifecycleChange) {
		t.Helper()
		_, err := m.host.UpdateLifecycle(t.Context(), id, change, 0)
		must(t, err)
	}
	set(lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdlePause)})
	m.clock.advance(untilDisk)
	m.host.Sweep()
	set(lifecycle.LifecycleChange{Hibernate: new(2 * untilDisk)})
	if m.engine.count(callHibernate) != 0 {
		t.Error("a sandbox that is to stay in memory was brought to the disk")
	}
	set(lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdleHibernate)})
	if m.engine.count(callHibernate) != 0 {
		t.Error("a sandbox was brought to the disk before its time")
	}
	set(lifecycle.LifecycleChange{Hibernate: new(untilDisk)})
	m.awaitPausedFor(id, want)
	set(lifecycle.LifecycleChange{OnIdle: new(lifecycle.OnIdlePause)})
	if status := m.get(id).Status; status.Reason != want {
		t.Errorf("the sandbox on the disk is %+v", status)
	}
	must(t, m.host.Pause(t.Context(), id)) // from here on nothing but a resume wakes it
	if err := m.host.Wake(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("a request to a sandbox that a client has paused: %v", err)
	}
	must(t, m.host.Resume(t.Context(), id))
	m.awaitRuns(id, 2)
}
