package e2e_test

import (
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestRestartRecordsWhatHappened has sandboxes end, and one be thawed, while the service is not
// running.
func TestRestartRecordsWhatHappened(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	exits := s.Running(t,
		conformance.Request(busyboxImage, "sh", "-c",
			"until [ -e /tmp/end ]; do sleep 0.05; done; exit 5"))
	inside := s.Enter(t, exits)
	removed, thawed := s.Running(t, idle()), s.Running(t, idle())
	s.Pause(t, thawed)
	s.Halt(t)
	inside.Want(t, "touch /tmp/end", "")
	if err := s.engine.Remove(t.Context(), "sandbox-"+removed); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Thaw(t.Context(), "sandbox-"+thawed); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the entrypoint has ended", func() bool {
		container, err := s.engine.Inspect(t.Context(), "sandbox-"+exits)
		return err == nil && container.Status == "exited"
	})
	s.Boot(t)
	if got := s.Await(t, exits, "Failed").Status; got.Reason != "ENTRYPOINT_EXITED" {
		t.Errorf("the one that exited: %s (%s)", got.Reason, got.Message)
	}
	if got := s.Await(t, removed, "Failed").Status; got.Reason != "REMOVED_EXTERNALLY" {
		t.Errorf("the one that was removed: %s (%s)", got.Reason, got.Message)
	}
	s.Await(t, thawed, "Running")
}
