package supervisor_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// TestIdleEntrypoint needs no process, ends at a signal and by nothing else, and the daemon is
// stopped and started as beside another.
func TestIdleEntrypoint(t *testing.T) {
	t.Parallel()
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(end.String(), func(t *testing.T) {
			t.Parallel()
			trace := filepath.Join(t.TempDir(), "trace")
			daemon := `trap 'echo stopped >> "$1"; exit 0' TERM
				printf x >&$EXECD_READY_FD
				echo started $(head -c 1 <&$EXECD_STARTED_FD | od -An -tu1) restarts $EXECD_RESTARTS >> "$1"
				[ $EXECD_RESTARTS = 1 ] || exit 3
				while :; do sleep 0.01; done`
			s := start(t, plan{Entrypoint: []string{"/no/such/program", "idle"}, Idle: true, Daemon: shell(daemon, trace), AwaitReady: true, Grace: wait.Patience()})
			wait.Until(t, "the daemon was started again", func() bool {
				return content(t, trace) == "started 1 restarts 0\nstarted 1 restarts 1\n"
			})
			for _, other := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGWINCH, syscall.SIGCONT} {
				if err := s.cmd.Process.Signal(other); err != nil {
					t.Fatal(err)
				}
			}
			if got := len(s.children()); got != 1 {
				t.Errorf("%d children, want the daemon alone", got)
			}
			if err := s.cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			if got := s.wait(); got != 0 {
				t.Errorf("exit code %d, want 0", got)
			}
			if got := content(t, trace); !strings.HasSuffix(got, "stopped\n") {
				t.Errorf("the daemon was not stopped: %q", got)
			}
		})
	}
}

// TestIdleReapsOrphans, as beside another entrypoint.
func TestIdleReapsOrphans(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "trace")
	const orphans = 20
	daemon := `i=0; while [ $i -lt ` + strconv.Itoa(orphans) + ` ]; do (sh -c 'exit 0' &); i=$((i+1)); done; echo done > "$1"; exec sleep 1000`
	s := start(t, plan{Entrypoint: []string{"idle"}, Idle: true, Daemon: shell(daemon, trace), Grace: time.Second})
	wait.Until(t, "the orphans were left", func() bool { return content(t, trace) == "done\n" })
	wait.Until(t, "all orphans were reaped", func() bool { return len(s.children()) == 1 })
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := s.wait(); got != 0 {
		t.Errorf("exit code %d, want 0", got)
	}
}
