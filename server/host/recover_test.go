package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/store"
	"sandbox.internal/test/wait"
)

// found is what a restarted service finds of a sandbox at the engine.
type found struct {
	name   string
	status engine.Status
	code   int
}

// TestRecovery starts a host over every state in the store and everything that may have become of
// the container meanwhile.
func TestRecovery(t *testing.T) {
	absent, created := found{name: "absent"}, found{name: "created", status: engine.StatusCreated}
	runs, frozen := found{name: "running", status: engine.StatusRunning}, found{name: "frozen", status: engine.StatusFrozen}
	exit0, exit1 := found{name: "exit0", status: engine.StatusExited}, found{name: "exit1", status: engine.StatusExited, code: 1}
	removing, stopped := found{name: "removing", status: engine.StatusRemoving}, found{name: "stopped", status: engine.StatusStopped}
	table := map[lifecycle.State]map[found]lifecycle.State{
		"Pending":    {absent: "Running", created: "Running", runs: "Running", frozen: "Running", exit0: "Terminated", exit1: "Failed", removing: "Running", stopped: "Running"},
		"Running":    {absent: "Failed", created: "Failed", runs: "Running", frozen: "Paused", exit0: "Terminated", exit1: "Failed", removing: "Failed", stopped: "Paused"},
		"Pausing":    {absent: "Failed", created: "Failed", runs: "Paused", frozen: "Paused", exit0: "Terminated", exit1: "Failed", removing: "Failed", stopped: "Paused"},
		"Paused":     {absent: "Failed", created: "Failed", runs: "Running", frozen: "Paused", exit0: "Terminated", exit1: "Failed", removing: "Failed", stopped: "Paused"},
		"Resuming":   {absent: "Failed", created: "Failed", runs: "Running", frozen: "Running", exit0: "Terminated", exit1: "Failed", removing: "Failed", stopped: "Paused"},
		"Stopping":   {absent: "Terminated", created: "Terminated", runs: "Terminated", frozen: "Terminated", exit0: "Terminated", exit1: "Terminated", removing: "Terminated", stopped: "Terminated"},
		"Terminated": {absent: "Terminated", created: "Terminated", runs: "Terminated", frozen: "Terminated", exit0: "Terminated", exit1: "Terminated", removing: "Terminated", stopped: "Terminated"},
		"Failed":     {absent: "Failed", created: "Failed", runs: "Failed", frozen: "Failed", exit0: "Failed", exit1: "Failed", removing: "Failed", stopped: "Failed"},
	}
	if len(table) != len(lifecycle.States()) {
		t.Fatalf("the table has %d states of %d", len(table), len(lifecycle.States()))
	}
	left := map[lifecycle.State]engine.Status{"Running": engine.StatusRunning, "Paused": engine.StatusFrozen}

	m := newMachine(t)
	for state, row := range table {
		for was := range row {
			r := m.record(fmt.Sprintf("%s-%s", state, was.name), state)
			m.had(r, was.status)
			m.engine.happen(container(r.Sandbox.ID), engine.EventExited, func(c *engine.Container) { c.ExitCode = was.code })
		}
	}
	m.start()
	for was := range table[lifecycle.StateTerminated] { // their records say that they are gone
		if got := m.engine.status(container("Terminated-" + was.name)); got != "" {
			t.Errorf("a container that was removed is %s after the start", got)
		}
	}
	for state, row := range table {
		for was, want := range row {
			id := fmt.Sprintf("%s-%s", state, was.name)
			t.Run(id, func(t *testing.T) {
				remains := left[want]
				if was == stopped && want == lifecycle.StatePaused { // nothing is started by itself
					remains = engine.StatusStopped
				}
				settled := func() bool {
					return m.engine.status(container(id)) == remains && m.get(id).Status.State == want
				}
				wait.Until(t, "the sandbox has settled", settled, func() any { return []any{m.get(id).Status, m.engine.status(container(id))} })
			})
		}
	}
	// What is found later in spite of a record that says it is gone.
	id := "Terminated-" + runs.name
	m.engine.put(m.containerOf(m.record(id, lifecycle.StateTerminated), engine.StatusRunning))
	m.host.Sweep()
	if got := m.engine.status(container(id)); got != "" {
		t.Errorf("a container that was removed is %s", got)
	}
}

// TestWhatALossOfPowerTakesBack: states that recovery reads from the engine, as TestRecovery shows,
// and stages. Every other change is synced.
func TestWhatALossOfPowerTakesBack(t *testing.T) {
	m := newMachine(t).start()
	id := m.paused()
	if err := m.host.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	want := []string{"pulled", "created", "started", "Pausing", "Paused", "Resuming", "Running"}
	if got := m.store.unsynced[id]; !slices.Equal(got, want) {
		t.Errorf("saved without a sync: %v, want %v", got, want)
	}
}

func TestRestartGoesOn(t *testing.T) {
	m := newMachine(t).start()
	running, paused := m.running(), m.paused()
	pull := newGate()
	m.engine.failBefore(callEnsureImage, func(ctx context.Context, ref string) error {
		if ref == "execd" {
			return nil
		}
		return pull.fault(ctx, ref)
	})
	pending := m.create()
	pull.await(t)
	before, err := m.host.Locate(t.Context(), running, 80)
	if err != nil {
		t.Fatal(err)
	}
	m.host.Close()
	if m.engine.status(container(running)) != engine.StatusRunning || m.engine.status(container(paused)) != engine.StatusFrozen {
		t.Fatal("the end of the service touched sandboxes")
	}
	close(pull.open)
	m.start()
	m.await(pending, lifecycle.StateRunning)
	if m.get(running).Status.State != lifecycle.StateRunning || m.get(paused).Status.State != lifecycle.StatePaused {
		t.Errorf("states after the restart: %s, %s", m.get(running).Status.State, m.get(paused).Status.State)
	}
	after, err := m.host.Locate(t.Context(), running, 80)
	if again, endpoint := after.Endpoint, before.Endpoint; err != nil || again.Port != endpoint.Port || again.Headers["X-EXECD-ACCESS-TOKEN"] != endpoint.Headers["X-EXECD-ACCESS-TOKEN"] {
		t.Errorf("endpoint after the restart: %+v, %v; before: %+v", again, err, endpoint)
	}
}

// TestLabelsOfAnImage: an image that was made of a sandbox's container passes the labels on, and an
// image of a client's may have any.
func TestLabelsOfAnImage(t *testing.T) {
	m := newMachine(t)
	bridged := m.record("bridged", lifecycle.StateRunning)
	labelled := m.containerOf(bridged, engine.StatusRunning)
	labelled.Labels[lifecycle.LabelPrefix+"execd-port"] = "1"
	labelled.Labels[lifecycle.LabelPrefix+"sidecar"] = "egress"
	if err := m.store.Insert(t.Context(), bridged, nil); err != nil {
		t.Fatal(err)
	}
	m.engine.put(labelled)
	lost := m.containerOf(m.record("lost", lifecycle.StateRunning), engine.StatusRunning)
	lost.Labels[lifecycle.LabelPrefix+"execd-port"] = "1"
	lost.Labels[lifecycle.LabelPrefix+"sidecar"] = "egress"
	m.engine.put(lost)
	foreign := m.containerOf(bridged, engine.StatusRunning)
	foreign.Name = "of-another-program"
	m.engine.put(foreign)
	without := m.containerOf(m.record("without", lifecycle.StateRunning), engine.StatusRunning)
	without.Name = "of-a-third-program"
	m.engine.put(without)
	m.start()
	for _, id := range []string{"bridged", "lost"} {
		m.await(id, lifecycle.StateRunning)
		port := func() int { return m.host.RecordOf(id).Port }
		wait.Until(t, "there is a port", func() bool { return port() != 0 })
		if want := m.engine.port(container(id)); port() != want {
			t.Errorf("%s: execd is reached at port %d, want %d", id, port(), want)
		}
	}
	if _, err := m.host.Get(t.Context(), "without"); kindOf(err) != lifecycle.KindNotFound {
		t.Errorf("the container of another program became a sandbox: %v", err)
	}
	if err := m.host.Delete(t.Context(), "bridged"); err != nil {
		t.Fatal(err)
	}
	m.await("bridged", lifecycle.StateTerminated)
	m.host.Sweep()
	for _, name := range []string{foreign.Name, without.Name} {
		if m.engine.status(name) != engine.StatusRunning {
			t.Errorf("the container %s was removed", name)
		}
	}
}

// A restart during a pull with credentials cannot continue it, and the message says why.
func TestRestartForgetsCredentials(t *testing.T) {
	m := newMachine(t)
	r := m.record("private", lifecycle.StatePending)
	r.NeedsAuth = true
	m.had(r, "")
	m.engine.failBefore(callEnsureImage, func(_ context.Context, ref string) error {
		if ref == "execd" {
			return nil
		}
		return fmt.Errorf("%w: no basic auth credentials", engine.ErrImage)
	})
	m.start()
	status := m.awaitReason("private", lifecycle.StateFailed, lifecycle.ReasonImagePullError)
	if !strings.Contains(status.Message, "no basic auth credentials") || !strings.Contains(status.Message, "create the sandbox again") {
		t.Errorf("message: %q", status.Message)
	}
}

func TestLostDatabase(t *testing.T) {
	m := newMachine(t)
	put := func(id string, status engine.Status, change func(*lifecycle.Record)) {
		r := m.record(id, lifecycle.StatePending)
		r.Sandbox.Metadata = map[string]string{"name": id}
		if change != nil {
			change(&r)
		}
		m.engine.put(m.containerOf(r, status))
	}
	put("running", engine.StatusRunning, nil)
	put("frozen", engine.StatusFrozen, nil)
	put("exited", engine.StatusExited, nil)
	put("created", engine.StatusCreated, nil)
	put("overdue", engine.StatusRunning, func(r *lifecycle.Record) { r.Sandbox.ExpiresAt = m.clock.now().Add(-time.Second) })
	broken := m.containerOf(m.record("broken", lifecycle.StatePending), engine.StatusRunning)
	broken.Labels[lifecycle.LabelPrefix+"record"] = "{"
	m.engine.put(broken)
	stolen := m.containerOf(m.record("stolen", lifecycle.StatePending), engine.StatusRunning)
	stolen.Labels[lifecycle.LabelPrefix+"id"] = "another-id"
	stolen.Name = container("another-id")
	m.engine.put(stolen)
	foreign := m.containerOf(m.record("foreign", lifecycle.StatePending), engine.StatusRunning)
	foreign.Labels[lifecycle.LabelPrefix+"instance"] = "another"
	m.engine.put(foreign)

	m.start()
	m.await("running", lifecycle.StateRunning)
	m.await("frozen", lifecycle.StatePaused)
	m.awaitReason("overdue", lifecycle.StateTerminated, lifecycle.ReasonExpired)
	if name := m.get("running").Metadata["name"]; name != "running" {
		t.Errorf("metadata: %q", name)
	}
	wait.Until(t, "three containers are left", func() bool { return len(m.engine.names()) == 3 }, func() any { return m.engine.names() })
	if m.engine.status(foreign.Name) != engine.StatusRunning {
		t.Error("the container of another service was touched")
	}
	if _, err := m.host.Locate(t.Context(), "frozen", 80); err != nil {
		t.Errorf("endpoint of an adopted sandbox: %v", err)
	}
	records, err := m.store.Load(t.Context())
	if err != nil || len(records) != 3 {
		t.Errorf("the store has %d records, %v; want 3", len(records), err)
	}
}

func TestStartFailures(t *testing.T) {
	tests := []struct {
		call string
		says string
	}{
		{callInfo, "ask the container engine"},
		{callEnsureImage, `runtime.execd_image "execd"`},
		{"List", "list the containers"},
	}
	for _, tt := range tests {
		t.Run(tt.call, func(t *testing.T) {
			m := newMachine(t)
			m.engine.failBefore(tt.call, func(context.Context, string) error { return errRefused })
			if _, err := m.open(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v does not say %q", err, tt.says)
			}
		})
	}
	t.Run("adoption that is not durable", func(t *testing.T) {
		m := newMachine(t)
		m.engine.put(m.containerOf(m.record("adopted", lifecycle.StatePending), engine.StatusRunning))
		m.store.fail(callInsert, errDisk)
		if _, err := m.open(); err == nil || !strings.Contains(err.Error(), "adopted") {
			t.Errorf("error: %v", err)
		}
		if m.engine.status(container("adopted")) != engine.StatusRunning {
			t.Error("the sandbox was touched")
		}
	})
}

func TestForgettingIsRepeated(t *testing.T) {
	m := newMachine(t)
	r := m.record("ended", lifecycle.StateTerminated)
	r.RetainUntil = m.clock.now().Add(-time.Second)
	m.had(r, "")
	m.store.fail(callForget, errDisk)
	m.start()
	if state := m.get("ended").Status.State; state != lifecycle.StateTerminated {
		t.Errorf("state: %s", state)
	}
	m.store.fail(callForget, nil)
	m.host.Close()
	m.start()
	m.awaitForgotten("ended")
}

// TestInspectionsAreBounded: when the engine comes back every actor inspects
// its container, and the engine is not asked for all of them at once.
func TestInspectionsAreBounded(t *testing.T) {
	const sandboxes, atMost = 60, 16
	m := newMachine(t)
	for i := range sandboxes {
		r := m.record(fmt.Sprintf("s%02d", i), lifecycle.StateRunning)
		m.had(r, engine.StatusRunning)
	}
	m.start()
	wait.Until(t, "each container was inspected", func() bool { return m.engine.count(callInspect) >= sandboxes }, func() any { return m.engine.count(callInspect) })
	var now, most, asked atomic.Int32
	m.engine.failBefore(callInspect, func(context.Context, string) error {
		for running := now.Add(1); ; {
			seen := most.Load()
			if running <= seen || most.CompareAndSwap(seen, running) {
				break
			}
		}
		time.Sleep(5 * time.Millisecond) // an engine that takes a while, so that the calls that may overlap do
		now.Add(-1)
		asked.Add(1)
		return nil
	})
	m.engine.hangUp()
	wait.Until(t, "each container was inspected again", func() bool { return asked.Load() >= sandboxes }, func() any { return asked.Load() })
	if most.Load() > atMost {
		t.Errorf("%d inspections at once, want at most %d", most.Load(), atMost)
	}
}

// TestReady: the service is ready while the engine and the store answer, and says which does not.
func TestReady(t *testing.T) {
	m := newMachine(t).start()
	if err := m.host.Ready(t.Context()); err != nil {
		t.Errorf("both answer: %v", err)
	}
	m.store.fail(callCheckWritable, errDisk)
	if err := m.host.Ready(t.Context()); kindOf(err) != lifecycle.KindUnavailable || !strings.Contains(err.Error(), "the store") {
		t.Errorf("without a store: %v", err)
	}
	m.store.fail(callCheckWritable, nil)
	m.engine.failBefore(callInfo, func(context.Context, string) error { return engine.ErrUnavailable })
	if err := m.host.Ready(t.Context()); kindOf(err) != lifecycle.KindUnavailable || !strings.Contains(err.Error(), "engine") {
		t.Errorf("without an engine: %v", err)
	}
}

// TestReadyOnAFullDisk: a store that cannot be written to is not ready until there is room.
func TestReadyOnAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("this test mounts a small file system, and so needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	records, err := store.Open(filepath.Join(disk, "store"), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	m := newMachine(t)
	m.store.Store = records
	m.start()
	if err := m.host.Ready(t.Context()); err != nil {
		t.Errorf("with room: %v", err)
	}
	rest := filepath.Join(disk, "rest")
	if err := os.WriteFile(rest, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := m.host.Ready(t.Context()); kindOf(err) != lifecycle.KindUnavailable || !strings.Contains(err.Error(), "the store") {
		t.Errorf("on a full disk: %v", err)
	}
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	if err := m.host.Ready(t.Context()); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
