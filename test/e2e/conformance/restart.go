package conformance

import (
	"os"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
)

func testRestartKeepsSandboxes(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Program: true})
	running, paused, ended := s.Running(t, s.Idle()), s.Running(t, s.Idle()), s.Running(t, s.Idle())
	s.Enter(t, running).Want(t, "echo kept > /tmp/note", "")
	s.Pause(t, paused)
	s.Delete(t, ended)
	s.Await(t, ended, "Terminated")
	expiresAt := time.Now().Add(3 * time.Hour).UTC().Truncate(time.Second)
	s.Renew(t, running, expiresAt.Format(time.RFC3339))

	check := func(t *testing.T) {
		t.Helper()
		for id, want := range map[string]string{running: "Running", paused: "Paused",
			ended: "Terminated"} {
			if got := s.Get(t, id).Status; got.State != want {
				t.Errorf("the sandbox that was %s is %s (%s: %s)", want, got.State, got.Reason,
					got.Message)
			}
		}
		if got := s.Get(t, running).ExpiresAt; !got.Equal(expiresAt) {
			t.Errorf("the sandbox expires at %v, want the renewed %v", got, expiresAt)
		}
		s.Enter(t, running).Want(t, "cat /tmp/note", "kept\n")
		s.Resume(t, paused)
		s.Enter(t, paused).Want(t, "echo usable", "usable\n")
		s.Pause(t, paused)
	}
	t.Run("after SIGTERM", func(t *testing.T) {
		s.Halt(t)
		s.Boot(t)
		check(t)
	})
	t.Run("after SIGKILL", func(t *testing.T) {
		s.Kill()
		s.Boot(t)
		check(t)
	})
}

// testLossOfTheDirectory: whatever a service keeps in its data_dir, no sandbox is lost with it.
func testLossOfTheDirectory(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	r := s.Idle()
	r.Metadata = lifecycle.Metadata{"name": "not lost"}
	running, paused := s.Running(t, r), s.Running(t, r)
	s.Enter(t, running).Want(t, "echo kept > /tmp/note", "")
	s.Pause(t, paused)
	before := map[string]lifecycle.Sandbox{running: s.Get(t, running), paused: s.Get(t, paused)}
	s.Halt(t)
	if err := os.RemoveAll(s.Directory); err != nil {
		t.Fatal(err)
	}
	s.Boot(t)
	s.Await(t, running, "Running")
	s.Await(t, paused, "Paused")
	for id, old := range before {
		got := s.Get(t, id)
		if got.Metadata["name"] != "not lost" || got.Image != old.Image ||
			!got.CreatedAt.Equal(old.CreatedAt) || !got.ExpiresAt.Equal(old.ExpiresAt) {
			t.Errorf("rebuilt %+v, it was %+v", got, old)
		}
	}
	s.Enter(t, running).Want(t, "cat /tmp/note", "kept\n")
	s.Resume(t, paused)
	s.Enter(t, paused).Want(t, "echo usable", "usable\n")
}
