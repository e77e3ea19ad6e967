package command_test

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

// traceeVariable makes this program trace a process, instead of running tests, until its standard
// input ends.
const traceeVariable = "COMMAND_TEST_TRACEE"

func trace(tracee string) int {
	runtime.LockOSThread() // a thread is what traces
	pid, err := strconv.Atoi(tracee)
	if err == nil {
		err = unix.PtraceSeize(pid)
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		return 1
	}
	os.Stdout.WriteString("traced\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// TestTracedCommand: what has ended while another process traces it can be waited for by that
// process alone. Other commands do not wait for it.
func TestTracedCommand(t *testing.T) {
	m := newManager(t)
	traced := start(t, m, command.Spec{Command: "echo $$; exec sleep 1000"})
	events := follow(t, traced, 0, func(e event) bool { return e.Type == eventlog.TypeStdout })
	pid, err := strconv.Atoi(last(events).text)
	if err != nil {
		t.Fatal(err)
	}
	tracer := wait.Command(t, "/proc/self/exe")
	tracer.Env = append(os.Environ(), traceeVariable+"="+strconv.Itoa(pid))
	tracer.Stderr = os.Stderr
	letGo, err := tracer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		letGo.Close()
		_ = tracer.Wait()
	}()
	answer := make([]byte, 100)
	if n, err := said.Read(answer); err != nil || strings.TrimSpace(string(answer[:n])) != "traced" {
		t.Fatalf("the tracer says %q, %v", answer[:n], err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the process has ended", func() bool { return gone(pid) })

	other := start(t, m, command.Spec{Command: "echo other"})
	select {
	case <-other.Done():
	case <-traced.Done():
		t.Error("the traced command has ended, although its process cannot be waited for")
	case <-time.After(wait.Patience()):
		t.Error("another command waits for the traced one")
	}
	letGo.Close()
	awaitEnd(t, traced)
	if code := traced.Status().ExitCode; code == nil || *code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit code %v", code)
	}
	awaitEnd(t, other)
}
