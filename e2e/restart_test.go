package e2e_test

import (
	"os"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
)

func TestRestartKeepsSandboxes(t *testing.T) {
	t.Parallel()
	s := start(t, plan{program: true})
	running, paused, ended := s.running(t, idle()), s.running(t, idle()), s.running(t, idle())
	s.enter(t, running).want(t, "echo kept > /tmp/note", "")
	s.pause(t, paused)
	s.await(t, paused, "Paused")
	s.delete(t, ended)
	s.await(t, ended, "Terminated")
	expiresAt := time.Now().Add(3 * time.Hour).UTC().Truncate(time.Second)
	s.renew(t, running, expiresAt.Format(time.RFC3339))

	check := func(t *testing.T) {
		t.Helper()
		for id, want := range map[string]string{running: "Running", paused: "Paused", ended: "Terminated"} {
			if got := s.get(t, id).Status; got.State != want {
				t.Errorf("the sandbox that was %s is %s (%s: %s)", want, got.State, got.Reason, got.Message)
			}
		}
		if got := s.get(t, running).ExpiresAt; !got.Equal(expiresAt) {
			t.Errorf("it expires at %v, want the renewed %v", got, expiresAt)
		}
		s.enter(t, running).want(t, "cat /tmp/note", "kept\n")
		s.resume(t, paused)
		s.await(t, paused, "Running")
		s.enter(t, paused).want(t, "echo usable", "usable\n")
		s.pause(t, paused)
		s.await(t, paused, "Paused")
	}
	t.Run("after SIGTERM", func(t *testing.T) {
		s.halt(t)
		s.boot(t)
		check(t)
	})
	t.Run("after SIGKILL", func(t *testing.T) {
		s.kill()
		s.boot(t)
		check(t)
	})
}

// TestRestartSeesWhatHappened has sandboxes end, and one wake up, while the service is not there.
func TestRestartSeesWhatHappened(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	exits := s.running(t, request(busyboxImage, "sh", "-c", "until [ -e /tmp/end ]; do sleep 0.05; done; exit 5"))
	inside := s.enter(t, exits)
	removed, thawed := s.running(t, idle()), s.running(t, idle())
	s.pause(t, thawed)
	s.await(t, thawed, "Paused")
	s.halt(t)
	inside.want(t, "touch /tmp/end", "")
	if err := s.engine.Remove(t.Context(), "sandbox-"+removed); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Thaw(t.Context(), "sandbox-"+thawed); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the entrypoint has ended", func() bool {
		container, err := s.engine.Inspect(t.Context(), "sandbox-"+exits)
		return err == nil && container.Status == "exited"
	})
	s.boot(t)
	if got := s.await(t, exits, "Failed").Status; got.Reason != "ENTRYPOINT_EXITED" {
		t.Errorf("the one that exited: %s (%s)", got.Reason, got.Message)
	}
	if got := s.await(t, removed, "Failed").Status; got.Reason != "REMOVED_EXTERNALLY" {
		t.Errorf("the one that was removed: %s (%s)", got.Reason, got.Message)
	}
	s.await(t, thawed, "Running")
}

func TestRecordsAreRebuiltFromContainers(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	r := idle()
	r.Metadata = lifecycle.Metadata{"name": "not lost"}
	running, paused := s.running(t, r), s.running(t, r)
	s.enter(t, running).want(t, "echo kept > /tmp/note", "")
	s.pause(t, paused)
	s.await(t, paused, "Paused")
	before := map[string]lifecycle.Sandbox{running: s.get(t, running), paused: s.get(t, paused)}
	s.halt(t)
	if err := os.RemoveAll(s.folder); err != nil {
		t.Fatal(err)
	}
	s.boot(t)
	s.await(t, running, "Running")
	s.await(t, paused, "Paused")
	for id, old := range before {
		got := s.get(t, id)
		if got.Metadata["name"] != "not lost" || got.Image != old.Image || !got.CreatedAt.Equal(old.CreatedAt) || !got.ExpiresAt.Equal(old.ExpiresAt) {
			t.Errorf("rebuilt %+v, it was %+v", got, old)
		}
	}
	s.enter(t, running).want(t, "cat /tmp/note", "kept\n")
	s.resume(t, paused)
	s.enter(t, paused).want(t, "echo usable", "usable\n")
}
