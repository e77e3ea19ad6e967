package supervisor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/internal/supervisor"
	"sandbox.internal/test/wait"
)

func TestDaemonIsRestarted(t *testing.T) {
	t.Parallel()
	starts := filepath.Join(t.TempDir(), "starts")
	s := start(t, plan{
		Entrypoint: shell("echo ready; read line; exit 6"),
		Daemon:     shell(`echo up >> "$1"; exec sleep 1000`, starts),
	})
	s.expect("ready")
	for kills := range 3 {
		daemon := s.child("sleep 1000")
		if err := syscall.Kill(daemon.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "another start", func() bool { return strings.Count(content(t, starts), "up") == kills+2 })
	}
	if got := strings.Count(s.errors(), "killed by SIGKILL"); got != 3 {
		t.Errorf("the log reports %d deaths, want 3: %s", got, s.errors())
	}
	s.say("go\n")
	if got := s.wait(); got != 6 {
		t.Errorf("exit code %d, want 6: the entrypoint must not notice", got)
	}
}

func TestEntrypointWaitsForTheDaemon(t *testing.T) {
	t.Parallel()
	const daemon = `echo works; echo >&$EXECD_READY_FD; eval "exec $EXECD_READY_FD>&-"; exec sleep 1000`
	s := start(t, plan{Entrypoint: shell("echo runs; exit 5"), Daemon: shell(daemon), AwaitReady: true})
	s.expect("works")
	s.expect("runs")
	if got := s.wait(); got != 5 {
		t.Errorf("exit code %d, want 5", got)
	}
}

// TestDaemonWaitsForTheEntrypoint: it learns whether the entrypoint was started, also when it is
// started again.
func TestDaemonWaitsForTheEntrypoint(t *testing.T) {
	t.Parallel()
	const daemon = `echo >&$EXECD_READY_FD; eval "exec $EXECD_READY_FD>&-"; n=$(head -c 1 <&$EXECD_STARTED_FD | wc -c); echo "got $n" >>"$1"; exec sleep 1000`
	got := filepath.Join(t.TempDir(), "got")
	s := start(t, plan{Entrypoint: shell("echo runs; read line; exit 5"), Daemon: shell(daemon, got), AwaitReady: true})
	s.expect("runs")
	if err := syscall.Kill(s.child("sleep 1000").pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "both runs of the daemon have read that", func() bool { return content(t, got) == "got 1\ngot 1\n" })
	s.say("go\n")
	if code := s.wait(); code != 5 {
		t.Errorf("exit code %d, want 5", code)
	}

	got = filepath.Join(t.TempDir(), "got")
	s = start(t, plan{Entrypoint: []string{"/no/such/program"}, Daemon: shell("trap '' TERM; "+daemon, got), AwaitReady: true, Grace: time.Second})
	wait.Until(t, "the daemon has read that the entrypoint cannot be started", func() bool { return content(t, got) == "got 0\n" })
	if code := s.wait(); code != 127 {
		t.Errorf("exit code %d, want 127", code)
	}
}

func TestDaemonThatNeverWorksEndsTheContainer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		daemon []string
		want   int
	}{
		"exit code":       {shell("exit 7"), 7},
		"signal":          {shell("kill -KILL $$"), 137},
		"no such program": {[]string{"/no/such/daemon"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ran := filepath.Join(t.TempDir(), "ran")
			s := start(t, plan{Entrypoint: shell(`echo >"$1"`, ran), Daemon: test.daemon, AwaitReady: true})
			if got := s.wait(); got != test.want {
				t.Errorf("exit code %d, want %d; stderr: %s", got, test.want, s.errors())
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the entrypoint ran")
			}
		})
	}
}

func TestDaemonThatCannotStartLeavesTheEntrypointAlone(t *testing.T) {
	t.Parallel()
	s := start(t, plan{Entrypoint: shell("echo ready; read line; exit 8"), Daemon: []string{"/no/such/daemon"}})
	s.expect("ready")
	wait.Until(t, "two attempts in the log", func() bool { return strings.Count(s.errors(), "program not started") >= 2 })
	s.say("go\n")
	if got := s.wait(); got != 8 {
		t.Errorf("exit code %d, want 8", got)
	}
}

func TestDaemonIsStoppedGracefully(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	s := start(t, plan{
		Entrypoint: shell("echo ready; read line; exit 5"),
		Daemon:     shell(`trap 'echo stopped >> "$1"; exit 0' TERM; echo up >> "$1"; while :; do sleep 0.01; done`, trace),
		Grace:      wait.Patience(),
	})
	s.expect("ready")
	wait.Until(t, "the daemon is up", func() bool { return content(t, trace) == "up\n" })
	s.say("go\n")
	if got := s.wait(); got != 5 {
		t.Errorf("exit code %d, want 5", got)
	}
	if got := content(t, trace); got != "up\nstopped\n" {
		t.Errorf("the daemon's trace is %q", got)
	}
}

func TestDaemonThatDoesNotStopIsKilled(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	const grace = 300 * time.Millisecond
	s := start(t, plan{
		Entrypoint: shell("echo ready; read line; exit 5"),
		Daemon:     shell(`trap '' TERM; echo up > "$1"; exec sleep 1000`, trace),
		Grace:      grace,
	})
	s.expect("ready")
	wait.Until(t, "the daemon is up", func() bool { return content(t, trace) == "up\n" })
	began := time.Now()
	s.say("go\n")
	if got := s.wait(); got != 5 {
		t.Errorf("exit code %d, want 5", got)
	}
	if took := time.Since(began); took < grace {
		t.Errorf("killed after %v, before its grace of %v", took, grace)
	}
	if got := s.errors(); !strings.Contains(got, "killing it") {
		t.Errorf("the log does not report the kill: %s", got)
	}
}

func TestInitSurvivesTheLossOfItsLog(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	starts := filepath.Join(t.TempDir(), "starts")
	s := start(t, plan{
		Entrypoint: shell("echo ready; read line; exit 2"),
		Daemon:     shell(`echo up >> "$1"; exec sleep 1000`, starts),
	}, func(cmd *exec.Cmd) { cmd.Stderr = writer })
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	s.expect("ready")
	if err := syscall.Kill(s.child("sleep 1000").pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "another start", func() bool { return strings.Count(content(t, starts), "up") == 2 })
	s.say("go\n")
	if got := s.wait(); got != 2 {
		t.Errorf("exit code %d, want 2", got)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	b := supervisor.NewBackoff(5 * time.Second)
	for step, tt := range []struct{ lived, want time.Duration }{
		{0, 0}, {0, 100 * ms}, {0, 200 * ms}, {time.Second, 400 * ms}, {0, 800 * ms}, {0, 1600 * ms}, {0, 3200 * ms},
		{0, 5000 * ms}, {9 * time.Second, 5000 * ms}, {10 * time.Second, 0}, {0, 100 * ms},
	} {
		if got := supervisor.Next(b, tt.lived); got != tt.want {
			t.Errorf("step %d: delay is %v, want %v", step, got, tt.want)
		}
	}
}
