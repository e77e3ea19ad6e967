package host_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// reboot ends the service and all processes of the engine, and starts the service again. The
// containers of sandboxes keep their files; those of their networks have ended.
func (m *machine) reboot() {
	m.t.Helper()
	m.host.Close()
	for _, name := range m.engine.names() {
		m.engine.happen(name, engine.EventExited, func(c *engine.Container) {
			c.Status, c.Ports = engine.StatusStopped, nil
			if strings.HasSuffix(name, "-egress") {
				c.Status, c.ExitCode = engine.StatusExited, 137
			}
		})
	}
	m.start()
}

// TestReboot: after a reboot that its files outlive, a sandbox is Paused, whether it ran or was
// frozen. It counts and expires as before, starts only when it is resumed, with its token and
// policy, and is removed as any other.
func TestReboot(t *testing.T) {
	m, g := withSidecars(t)
	policy := &lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "example.com"}}}
	asked := spec()
	asked.NetworkPolicy = policy
	sandbox, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running, paused := sandbox.ID, m.paused()
	m.await(running, lifecycle.StateRunning)
	g.become(3, nil) // its daemon has died before
	before, err := m.host.Locate(t.Context(), running, 80)
	if err != nil {
		t.Fatal(err)
	}
	m.reboot()
	for _, id := range []string{running, paused} {
		wait.Until(t, "the reboot is known", func() bool { return m.get(id).Status.Reason == lifecycle.ReasonHostRebooted }, func() any { return m.get(id).Status })
		status := m.get(id).Status
		if status.State != lifecycle.StatePaused || !strings.Contains(status.Message, "resume starts its entrypoint again") {
			t.Errorf("after the reboot: %+v", status)
		}
		if location, err := m.host.Locate(t.Context(), id, 80); kindOf(location.Stopped) != lifecycle.KindConflict || !strings.Contains(location.Stopped.Error(), "resume it first") {
			t.Errorf("port of the stopped sandbox: %v", err)
		}
		if _, err := m.host.NetworkPolicy(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
			t.Errorf("policy of the stopped sandbox: %v", err)
		}
		if got := m.engine.status(container(id)); got != engine.StatusStopped {
			t.Errorf("container of the sandbox is %s", got)
		}
	}
	m.host.Sweep() // finds nothing to do
	m.host.Close() // and the next service knows it, too
	m.start()

	g.become(0, nil)
	if err := m.host.Resume(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	m.awaitReason(running, lifecycle.StateRunning, lifecycle.ReasonContainerRunning)
	if got := m.engine.status(sidecar(running)); got != engine.StatusRunning {
		t.Errorf("sidecar of the sandbox is %s", got)
	}
	after, err := m.host.Locate(t.Context(), running, 80)
	if err != nil || after.Token != before.Token {
		t.Errorf("endpoint is %+v, %v; before %+v", after, err, before)
	}
	if got, err := m.host.NetworkPolicy(t.Context(), running); err != nil || got.DefaultAction != "deny" || len(got.Egress) != 1 {
		t.Errorf("policy is %+v, %v", got, err)
	}
	if got := m.get(paused).Status; got.State != lifecycle.StatePaused {
		t.Errorf("the other one is %+v", got)
	}
	for _, id := range []string{running, paused} {
		if err := m.host.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		m.await(id, lifecycle.StateTerminated)
	}
	m.awaitEmpty()
}

// TestKeptSandboxExpires: the time of a sandbox goes on while the host is down, and while it waits
// to be resumed.
func TestKeptSandboxExpires(t *testing.T) {
	m := newMachine(t).start()
	during, later := m.running(), m.running()
	if _, err := m.host.Renew(t.Context(), later, m.clock.now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	m.clock.advance(time.Hour)
	m.reboot()
	m.awaitReason(during, lifecycle.StateTerminated, lifecycle.ReasonExpired)
	m.awaitReason(later, lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
	m.clock.advance(time.Hour)
	m.host.Sweep()
	m.awaitReason(later, lifecycle.StateTerminated, lifecycle.ReasonExpired)
	m.awaitEmpty()
}

// TestResumeThatFails: whatever keeps a sandbox from being started again, it stays Paused with its
// files, says why, and can be resumed later.
func TestResumeThatFails(t *testing.T) {
	for name, test := range map[string]struct {
		fault func(m *machine)
		heal  func(m *machine)
		want  string
	}{
		"image": {
			fault: func(m *machine) {
				m.engine.failBefore(callStart, func(context.Context, string) error { return fmt.Errorf("%w: it is gone", engine.ErrImage) })
			},
			heal: func(m *machine) { m.engine.failBefore(callStart, nil) },
			want: "it is gone",
		},
		"no room": {
			fault: func(m *machine) {
				m.engine.failBefore(callStart, func(context.Context, string) error {
					m.clock.advance(time.Minute)
					return fmt.Errorf("%w: no user ids are left", engine.ErrUnavailable)
				})
			},
			heal: func(m *machine) { m.engine.failBefore(callStart, nil) },
			want: "no user ids are left",
		},
		"entrypoint": {
			fault: func(m *machine) {
				m.engine.answerPing(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
				m.engine.failAfter(callStart, func(_ context.Context, name string) error {
					m.engine.exit(name, 3, false)
					return nil
				})
			},
			heal: func(m *machine) {
				m.engine.answerPing(nil)
				m.engine.failAfter(callStart, nil)
			},
			want: "exit code 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).start()
			id := m.running()
			m.reboot()
			m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
			test.fault(m)
			if err := m.host.Resume(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			failed := func() bool { return m.get(id).Status.Reason == lifecycle.ReasonResumeFailed }
			wait.Until(t, "the resume has failed", failed, func() any { return m.get(id).Status })
			if got := m.get(id).Status; got.State != lifecycle.StatePaused || !strings.Contains(got.Message, test.want) {
				t.Errorf("after a resume that failed: %+v", got)
			}
			if m.engine.status(container(id)) == "" {
				t.Fatal("container of the sandbox was removed")
			}
			m.host.Sweep()
			m.host.Close() // the next service leaves it as it is
			m.start()
			if got := m.get(id).Status; got.Reason != lifecycle.ReasonResumeFailed {
				t.Errorf("after a start of the service: %+v", got)
			}
			test.heal(m)
			if err := m.host.Resume(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			m.await(id, lifecycle.StateRunning)
			if err := m.host.Delete(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			m.await(id, lifecycle.StateTerminated)
			m.awaitEmpty()
		})
	}
}

// TestResumeGoesOn: a resume that a service has accepted is finished by the next one, and a sandbox
// can be deleted meanwhile.
func TestResumeGoesOn(t *testing.T) {
	m := newMachine(t).start()
	resumed, deleted := m.running(), m.running()
	m.reboot()
	m.awaitReason(resumed, lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
	m.awaitReason(deleted, lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
	hold := newGate()
	m.engine.failBefore(callStart, hold.fault)
	for _, id := range []string{resumed, deleted} {
		if err := m.host.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		m.await(id, lifecycle.StateResuming)
	}
	if err := m.host.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	hold.await(t)
	m.host.Close()
	close(hold.open)
	m.engine.failBefore(callStart, nil)
	m.start()
	m.await(resumed, lifecycle.StateRunning)
	m.await(deleted, lifecycle.StateTerminated)
	if names := m.engine.names(); !slices.Equal(names, []string{container(resumed)}) {
		t.Errorf("containers: %v", names)
	}
}

// TestResumeDuringInspection: an inspection from before a resume does not undo it.
func TestResumeDuringInspection(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.reboot()
	m.awaitReason(id, lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
	hold := newGate()
	m.engine.failBefore(callInspect, hold.fault)
	m.engine.happen(container(id), engine.EventExited, func(*engine.Container) {})
	hold.await(t)
	if err := m.host.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	close(hold.open)
	m.await(id, lifecycle.StateRunning)
}

// TestFilesLost: a sandbox whose files cannot be used after a reboot has failed, and says so.
func TestFilesLost(t *testing.T) {
	m := newMachine(t).start()
	id := m.running()
	m.host.Close()
	m.engine.happen(container(id), engine.EventExited, func(c *engine.Container) {
		c.Status, c.ExitCode, c.FilesLost = engine.StatusExited, 137, "the file system is damaged"
	})
	m.start()
	status := m.awaitReason(id, lifecycle.StateFailed, lifecycle.ReasonFilesLost)
	if !strings.Contains(status.Message, "the file system is damaged") {
		t.Errorf("message: %s", status.Message)
	}
	m.awaitEmpty()
}

// TestLostDatabaseAfterReboot: a container that keeps its files carries the record of its sandbox,
// too.
func TestLostDatabaseAfterReboot(t *testing.T) {
	m := newMachine(t)
	r := m.record("kept", lifecycle.StateRunning)
	m.engine.put(m.containerOf(r, engine.StatusStopped))
	m.start()
	m.awaitReason("kept", lifecycle.StatePaused, lifecycle.ReasonHostRebooted)
	if err := m.host.Resume(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	m.await("kept", lifecycle.StateRunning)
}
