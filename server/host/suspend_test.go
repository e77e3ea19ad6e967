package host_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestSuspend: the processes of a suspended sandbox are gone, and so is its sidecar; it starts on
// its files when it is resumed, with its token.
func TestSuspend(t *testing.T) {
	m, _ := withSidecars(t)
	asked := spec()
	asked.NetworkPolicy = &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	sandbox, err := m.host.Create(t.Context(), asked, lifecycle.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id := sandbox.ID
	m.await(id, lifecycle.StateRunning)
	before, err := m.host.Locate(t.Context(), id, 80)
	if err != nil {
		t.Fatal(err)
	}
	m.engine.write(container(id), "files")
	if err := m.host.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StatePaused)
	if status := m.get(id).Status; status.Reason != lifecycle.ReasonUserPause || !strings.Contains(status.Message, "its files are kept") {
		t.Errorf("the suspended sandbox is %+v", status)
	}
	if has := m.engine.names(); slices.Contains(has, sidecar(id)) || m.engine.status(container(id)) != engine.StatusStopped {
		t.Errorf("the container is %s, and there are %q", m.engine.status(container(id)), has)
	}
	if err := m.host.Suspend(t.Context(), id); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("suspending a suspended sandbox: %v", err)
	}
	if location, err := m.host.Locate(t.Context(), id, 80); kindOf(location.Stopped) != lifecycle.KindConflict || !strings.Contains(location.Stopped.Error(), "resume it first") {
		t.Errorf("port of the suspended sandbox: %v", err)
	}
	if location, err := m.host.Locate(t.Context(), id, lifecycle.SidecarPort); kindOf(err) != lifecycle.KindConflict {
		t.Errorf("the egress sidecar of the suspended sandbox is at %+v, %v", location, err)
	}
	m.host.Sweep()
	m.host.Close()
	m.start()
	if status := m.get(id).Status; status.State != lifecycle.StatePaused || status.Reason != lifecycle.ReasonUserPause {
		t.Errorf("after a restart of the service it is %+v", status)
	}
	if err := m.host.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateRunning)
	after, err := m.host.Locate(t.Context(), id, 80)
	if err != nil || after.Token != before.Token || m.engine.read(container(id)) != "files" || m.engine.status(sidecar(id)) != engine.StatusRunning {
		t.Errorf("the resumed sandbox is at %+v, %v, has the files %q and a sidecar that is %s", after, err, m.engine.read(container(id)),
			m.engine.status(sidecar(id)))
	}
}

// TestSuspendGoesOn: a service that ends while it suspends a sandbox goes on with it at its start.
func TestSuspendGoesOn(t *testing.T) {
	m := newMachine(t)
	m.start()
	id := m.running()
	hold := make(chan struct{})
	m.engine.failBefore(callSuspend, func(ctx context.Context, _ string) error {
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	suspended := make(chan error, 1)
	go func() { suspended <- m.host.Suspend(t.Context(), id) }()
	m.await(id, lifecycle.StatePausing)
	m.host.Close()
	close(hold)
	wait.For(t, "the end of the request", suspended)
	m.start()
	m.await(id, lifecycle.StatePaused)
	if got := m.engine.status(container(id)); got != engine.StatusStopped {
		t.Errorf("the container is %s", got)
	}
}

// TestSuspendOfAnEndedSandbox: a sandbox that ends by itself while it is being suspended has ended.
func TestSuspendOfAnEndedSandbox(t *testing.T) {
	m := newMachine(t)
	m.start()
	id := m.running()
	hold := make(chan struct{})
	m.engine.failBefore(callSuspend, func(ctx context.Context, _ string) error {
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	suspended := make(chan error, 1)
	go func() { suspended <- m.host.Suspend(t.Context(), id) }()
	m.await(id, lifecycle.StatePausing)
	m.engine.exit(container(id), 3, false)
	close(hold)
	wait.For(t, "the end of the request", suspended)
	m.await(id, lifecycle.StateFailed)
	if status := m.get(id).Status; status.Reason != lifecycle.ReasonEntrypointExited {
		t.Errorf("the sandbox is %+v", status)
	}
}

// TestSuspendRefused: a sandbox whose processes cannot be ended for long keeps its files, and is
// suspended once that is possible.
func TestSuspendRefused(t *testing.T) {
	m := newMachine(t)
	m.start()
	id := m.running()
	m.engine.write(container(id), "files")
	m.engine.failBefore(callSuspend, func(context.Context, string) error {
		m.clock.advance(16 * time.Second)
		if m.engine.count(callSuspend) <= 5 { // for more than a minute
			return errRefused
		}
		return nil
	})
	must(t, m.host.Suspend(t.Context(), id))
	m.await(id, lifecycle.StatePaused)
	if got := m.engine.status(container(id)); got != engine.StatusStopped || m.engine.read(container(id)) != "files" {
		t.Errorf("the container is %s and has the files %q", got, m.engine.read(container(id)))
	}
}
