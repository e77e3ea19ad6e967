package e2e_test

import (
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

func TestContainerChangedByAnotherProgram(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	t.Run("paused and resumed", func(t *testing.T) {
		t.Parallel()
		id := s.Running(t, idle())
		if err := s.engine.Freeze(t.Context(), "sandbox-"+id); err != nil {
			t.Fatal(err)
		}
		s.Await(t, id, "Paused")
		s.Resume(t, id)
	})
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		id := s.Running(t, idle())
		if err := s.engine.Stop(t.Context(), "sandbox-"+id, 0); err != nil {
			t.Fatal(err)
		}
		if got := s.Await(t, id, "Failed").Status; got.Reason != "ENTRYPOINT_EXITED" {
			t.Errorf("the reason is %s (%s)", got.Reason, got.Message)
		}
	})
}
