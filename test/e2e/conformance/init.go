package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

func testKilledEntrypoint(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	id := s.Running(t, Request(s.Images.Busybox, "sh", "-c", "echo $$ > /tmp/pid; exec sleep 1000"))
	s.Enter(t, id).RunFatal(t, "kill -9 $(cat /tmp/pid)")
	status := s.Await(t, id, "Failed").Status
	if status.Reason != "ENTRYPOINT_EXITED" {
		t.Errorf("the reason is %s", status.Reason)
	}
	Contains(t, status.Message, "exit code 137")
}

func testInit(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	directory := t.TempDir()
	r := Request(s.Images.Busybox, "sh", "-c",
		"trap 'echo TERM > /host/trace; exit 0' TERM; echo ready > /host/trace; while :; do sleep 0.05; done")
	r.Volumes = []lifecycle.Volume{{Name: "host", MountPath: "/host",
		Host: &lifecycle.HostSource{Path: directory}}}
	id := s.Running(t, r)
	inside := s.Enter(t, id)
	trace := func() string {
		content, _ := os.ReadFile(filepath.Join(directory, "trace")) // empty while it is not there
		return string(content)
	}

	t.Run("reaps what others left", func(t *testing.T) {
		// Each inner shell ends at once and leaves its sleep to the first process.
		inside.Want(t, "for i in $(seq 50); do sh -c 'sleep 0.01 & sleep 0.01 & :'; done", "")
		wait.Until(t, "no zombie is left", func() bool {
			return inside.Run(t, "cat /proc/[0-9]*/stat | grep -c ') Z '").Stdout == "0\n"
		})
	})
	t.Run("restarts a killed daemon", func(t *testing.T) {
		before := inside.Run(t, "echo $PPID").Stdout
		inside.RunFatal(t, "kill -9 $PPID")
		wait.Until(t, "another daemon answers", func() bool {
			now, err := inside.Try(t, "echo $PPID")
			return err == nil && now.Stdout != before
		})
		if got := s.Get(t, id).Status; got.State != "Running" {
			t.Errorf("the sandbox is %s (%s: %s)", got.State, got.Reason, got.Message)
		}
	})
	t.Run("passes SIGTERM on", func(t *testing.T) {
		wait.Until(t, "the entrypoint has set its trap",
			func() bool { return trace() == "ready\n" })
		s.Delete(t, id)
		s.Await(t, id, "Terminated")
		if got := trace(); got != "TERM\n" {
			t.Errorf("the entrypoint's trace is %q, want that SIGTERM arrived", got)
		}
	})
}

func testStubbornEntrypointIsKilled(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	id := s.Running(t,
		Request(s.Images.Busybox, "sh", "-c", "trap '' TERM; while :; do sleep 1; done"))
	s.Delete(t, id)
	s.Delete(t, id) // again, while Stopping, which takes as long as the entrypoint is given
	if got := s.Await(t, id, "Terminated").Status; got.Reason != "USER_DELETE" {
		t.Errorf("the reason is %s", got.Reason)
	}
}

// testStreamsEndBeforeTheirSandbox: a command that ignores SIGTERM is killed after its entrypoint
// has ended, which takes a second here, and its stream says so.
func testStreamsEndBeforeTheirSandbox(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	r := Request(s.Images.Busybox, "sh", "-c",
		"trap 'sleep 1; exit 0' TERM; while :; do sleep 0.05; done")
	r.Env = lifecycle.Env{"EXECD_API_GRACE_SHUTDOWN": "30s"}
	id := s.Running(t, r)
	inside := s.Enter(t, id)
	ended := make(chan error, 1)
	go func() {
		got, err := inside.Try(t, "trap '' TERM; touch /tmp/trap; while :; do sleep 0.05; done")
		if err == nil && got.Code != 137 {
			err = fmt.Errorf("the exit code is %d, want 137", got.Code)
		}
		ended <- err
	}()
	wait.Until(t, "the command has set its trap", func() bool {
		return s.Enter(t, id).Run(t, "test -e /tmp/trap && echo there").Stdout == "there\n"
	})
	s.Delete(t, id)
	if err := wait.For(t, "the end of the command", ended); err != nil {
		t.Error(err)
	}
	s.Await(t, id, "Terminated") // the client has left, so nothing waits for the 30 s
}
