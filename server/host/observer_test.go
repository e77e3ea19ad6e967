package host_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// notes is an observer that records its calls.
type notes struct {
	mu       sync.Mutex
	changes  []string
	stages   []lifecycle.Stage
	ready    int
	lateness []time.Duration
	negative bool
}

func (n *notes) StateChanged(to lifecycle.State, reason lifecycle.Reason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changes = append(n.changes, fmt.Sprintf("%s %s", to, reason))
}

func (n *notes) StageDone(stage lifecycle.Stage, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stages = append(n.stages, stage)
	n.negative = n.negative || took < 0
}

func (n *notes) Provisioned(took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready++
	n.negative = n.negative || took < 0
}

func (n *notes) Expired(late time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lateness = append(n.lateness, late)
}

func TestObserverIsToldOfALife(t *testing.T) {
	seen := &notes{}
	m := newMachine(t)
	m.options.Observer = seen
	m.start()
	id := m.running()
	if got := m.host.Count(); got[lifecycle.StateRunning] != 1 || len(got) != 1 {
		t.Errorf("count %v", got)
	}
	m.clock.advance(2 * time.Hour) // it should have ended an hour ago
	if err := m.host.Pause(t.Context(), id); err != nil && kindOf(err) != lifecycle.KindConflict {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	m.host.Close()
	if want := lifecycle.Stages(); !slices.Equal(seen.stages, want) || seen.ready != 1 || seen.negative {
		t.Errorf("stages %v, %d ready, negative durations: %t; want %v and 1", seen.stages, seen.ready, seen.negative, want)
	}
	if len(seen.lateness) != 1 || seen.lateness[0] < 59*time.Minute {
		t.Errorf("lateness %v", seen.lateness)
	}
	for _, want := range []string{"Pending PROVISIONING", "Running CONTAINER_RUNNING", "Stopping EXPIRED", "Terminated EXPIRED"} {
		if !slices.Contains(seen.changes, want) {
			t.Errorf("%q is not among %q", want, seen.changes)
		}
	}
}

// What was under way during a restart does not count with the time in which there was no service;
// what began after it counts.
func TestProvisioningAcrossARestartIsNotTimed(t *testing.T) {
	seen := &notes{}
	m := newMachine(t)
	m.options.Observer = seen
	r := m.record("old", lifecycle.StatePending)
	r.Sandbox.Stages = []lifecycle.StageTime{{Stage: lifecycle.StageAccepted, At: r.Sandbox.CreatedAt}}
	m.had(r, engine.StatusCreated)
	m.clock.advance(time.Minute)
	m.start()
	m.await("old", lifecycle.StateRunning)
	m.host.Close()
	if want := []lifecycle.Stage{lifecycle.StageCreated, lifecycle.StageStarted, lifecycle.StageReady}; seen.ready != 0 || !slices.Equal(seen.stages, want) {
		t.Errorf("%d provisioned, stages %v; want 0 and %v", seen.ready, seen.stages, want)
	}
}
