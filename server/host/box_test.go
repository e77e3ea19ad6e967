package host_test

import (
	"context"
	"slices"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// TestBoxWithAnIdentityOfItsOwn: a sandbox whose box is not named after it lives as any other does,
// whether its record is kept or lost.
func TestBoxWithAnIdentityOfItsOwn(t *testing.T) {
	for name, kept := range map[string]bool{"record kept": true, "record lost": false} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			r := m.record("sandbox", lifecycle.StateRunning)
			r.Box = "box"
			if kept {
				m.had(r, engine.StatusRunning)
			} else {
				m.engine.put(m.containerOf(r, engine.StatusRunning))
			}
			m.start()
			m.await("sandbox", lifecycle.StateRunning)
			m.host.Sweep()
			if names := m.engine.names(); !slices.Equal(names, []string{container("box")}) {
				t.Fatalf("containers: %v", names)
			}
			if err := m.host.Pause(context.Background(), "sandbox"); err != nil {
				t.Fatal(err)
			}
			m.await("sandbox", lifecycle.StatePaused)
			// as another process would
			if err := m.engine.Thaw(context.Background(), container("box")); err != nil {
				t.Fatal(err)
			}
			m.awaitReason("sandbox", lifecycle.StateRunning, lifecycle.ReasonContainerRunning)
			if err := m.host.Delete(context.Background(), "sandbox"); err != nil {
				t.Fatal(err)
			}
			m.await("sandbox", lifecycle.StateTerminated)
			m.awaitEmpty()
		})
	}
}

// TestSecondBoxOfASandbox: what carries a sandbox's record and is not its box is removed at the
// start.
func TestSecondBoxOfASandbox(t *testing.T) {
	m := newMachine(t)
	r := m.record("sandbox", lifecycle.StateRunning)
	r.Box = "box"
	m.had(r, engine.StatusRunning)
	r.Box = "other"
	m.engine.put(m.containerOf(r, engine.StatusRunning))
	m.start()
	if names := m.engine.names(); !slices.Equal(names, []string{container("box")}) {
		t.Errorf("containers: %v", names)
	}
	m.await("sandbox", lifecycle.StateRunning)
}
