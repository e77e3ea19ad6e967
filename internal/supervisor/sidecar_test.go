package supervisor_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/test/wait"
)

// roleVariable makes the test binary a supervisor without an entrypoint.
const roleVariable = "SUPERVISOR_TEST_ROLE"

// roleDeliver makes it one that delivers signals.
const roleDeliver = "deliver"

// sidecar runs a supervisor over a shell script, and returns it with the lines that the script
// prints.
func sidecar(t *testing.T, script string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	return sidecarAs(t, "1", script)
}

func sidecarAs(t *testing.T, role, script string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	t.Cleanup(cancel)
	args := []string{}
	if script != "" {
		args = []string{"/bin/sh", "-c", script}
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(stdout)
}

func line(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("nothing more is said: %v", lines.Err())
	}
	return lines.Text()
}

// ends waits for the supervisor and returns its exit status.
func ends(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner) int {
	t.Helper()
	for lines.Scan() { // Wait closes the pipe
	}
	_ = cmd.Wait() // the test reads the status
	return cmd.ProcessState.ExitCode()
}

func TestNeverReady(t *testing.T) {
	for script, want := range map[string]int{"exit 7": 7, "kill -9 $$": 137, "": 2} {
		cmd, lines := sidecar(t, script)
		if status := ends(t, cmd, lines); status != want {
			t.Errorf("%q: status %d, want %d", script, status, want)
		}
	}
}

func TestStartsAgain(t *testing.T) {
	cmd, lines := sidecar(t, `trap 'echo signalled; exit 3' TERM; eval "echo >&$TEST_READY_FD; exec $TEST_READY_FD>&-"; echo "run $TEST_RESTARTS $$"; while :; do sleep 0.05; done`)
	for run := range 3 {
		pid, ok := strings.CutPrefix(line(t, lines), "run "+strconv.Itoa(run)+" ")
		number, err := strconv.Atoi(pid)
		if !ok || err != nil {
			t.Fatalf("run %d: it says %q", run, lines.Text())
		}
		if run == 2 {
			break
		}
		if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	// To the supervisor, which passes it on.
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if said := line(t, lines); said != "signalled" {
		t.Errorf("the sidecar says %q", said)
	}
	if status := ends(t, cmd, lines); status != 3 {
		t.Errorf("status %d, want 3", status)
	}
}

// TestSignalBetweenRuns: a signal that comes while the program does not run is delivered to one
// that is started for it, once that works.
func TestSignalBetweenRuns(t *testing.T) {
	cmd, lines := sidecarAs(t, roleDeliver, `echo "run $TEST_RESTARTS $$"; test "$TEST_RESTARTS" = 4 && sleep 0.1; trap 'echo signalled; exit 3' TERM
		eval "echo >&$TEST_READY_FD; exec $TEST_READY_FD>&-"; echo works; while :; do sleep 0.05; done`)
	for run := range 4 { // the pause is 400 ms then
		number, err := strconv.Atoi(strings.TrimPrefix(line(t, lines), "run "+strconv.Itoa(run)+" "))
		if err != nil {
			t.Fatalf("run %d: it says %q", run, lines.Text())
		}
		if said := line(t, lines); said != "works" {
			t.Fatalf("run %d: it says %q", run, said)
		}
		if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the supervisor has reaped it", func() bool { return syscall.Kill(number, 0) != nil })
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if said := line(t, lines); !strings.HasPrefix(said, "run 4 ") {
		t.Fatalf("the sidecar says %q", said)
	}
	said := line(t, lines)
	if said == "works" { // it may come between
		said = line(t, lines)
	}
	if said != "signalled" {
		t.Errorf("the sidecar says %q", said)
	}
	if status := ends(t, cmd, lines); status != 3 {
		t.Errorf("status %d, want 3", status)
	}
}

// TestOrphans: what the program leaves behind falls to the supervisor, which reaps it and does not
// end it.
func TestOrphans(t *testing.T) {
	cmd, lines := sidecar(t, `echo >&3; exec 3>&-; (sh -c 'echo orphan $$; while kill -0 '$$' 2>/dev/null; do sleep 0.05; done; grep PPid /proc/$$/status; sleep 0.1' &)
		test "$TEST_RESTARTS" = 0 && { sleep 0.2; kill -9 $$; }; exec sleep 1000`)
	first := line(t, lines)
	pid, err := strconv.Atoi(strings.TrimPrefix(first, "orphan "))
	if err != nil {
		t.Fatalf("the sidecar says %q", first)
	}
	for parent := ""; parent == ""; {
		if said := line(t, lines); strings.HasPrefix(said, "PPid:") {
			parent = strings.TrimSpace(strings.TrimPrefix(said, "PPid:"))
			if parent != strconv.Itoa(cmd.Process.Pid) {
				t.Errorf("the orphan's parent is %s, the supervisor is %d", parent, cmd.Process.Pid)
			}
		}
	}
	wait.Until(t, "the orphan is reaped", func() bool { return syscall.Kill(pid, 0) != nil })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ends(t, cmd, lines)
}
