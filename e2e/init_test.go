package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/gen/lifecycle"
)

// contains checks that a text holds all of the words.
func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q does not say %q", text, word)
		}
	}
}

func TestKilledEntrypoint(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	id := s.running(t, request(busyboxImage, "sh", "-c", "echo $$ > /tmp/pid; exec sleep 1000"))
	s.enter(t, id).strike(t, "kill -9 $(cat /tmp/pid)")
	status := s.await(t, id, "Failed").Status
	if status.Reason != "ENTRYPOINT_EXITED" {
		t.Errorf("the reason is %s", status.Reason)
	}
	contains(t, status.Message, "exit code 137")
}

func TestInit(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	folder := t.TempDir()
	r := request(busyboxImage, "sh", "-c", "trap 'echo told > /host/trace; exit 0' TERM; echo ready > /host/trace; while :; do sleep 0.05; done")
	r.Volumes = []lifecycle.Volume{{Name: "host", MountPath: "/host", Host: &lifecycle.HostSource{Path: folder}}}
	id := s.running(t, r)
	inside := s.enter(t, id)
	trace := func() string {
		content, _ := os.ReadFile(filepath.Join(folder, "trace")) // empty while it is not there
		return string(content)
	}

	t.Run("reaps what others left", func(t *testing.T) {
		// Each inner shell ends at once and leaves its sleep to the first process.
		inside.want(t, "for i in $(seq 50); do sh -c 'sleep 0.01 & sleep 0.01 & :'; done", "")
		eventually(t, "no zombie is left", func() bool {
			return inside.run(t, "cat /proc/[0-9]*/stat | grep -c ') Z '").stdout == "0\n"
		})
	})
	t.Run("restarts a killed daemon", func(t *testing.T) {
		before := inside.run(t, "echo $PPID").stdout
		inside.strike(t, "kill -9 $PPID")
		eventually(t, "another daemon answers", func() bool {
			response, err := inside.client.PingWithResponse(t.Context())
			return err == nil && response.StatusCode() == 200 && inside.run(t, "echo $PPID").stdout != before
		})
		if got := s.get(t, id).Status; got.State != "Running" {
			t.Errorf("the sandbox is %s (%s: %s)", got.State, got.Reason, got.Message)
		}
	})
	t.Run("passes SIGTERM on", func(t *testing.T) {
		eventually(t, "the entrypoint has set its trap", func() bool { return trace() == "ready\n" })
		s.delete(t, id)
		s.await(t, id, "Terminated")
		if got := trace(); got != "told\n" {
			t.Errorf("the entrypoint's trace is %q, want that it was told", got)
		}
	})
}

func TestStubbornEntrypointIsKilled(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	id := s.running(t, request(busyboxImage, "sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
	s.delete(t, id)
	if got := s.await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason is %s", got.Reason)
	}
}
