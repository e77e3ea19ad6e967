package command_test

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

// child returns the number that a command has printed first.
func child(t *testing.T, c *command.Command) int {
	t.Helper()
	pid, err := strconv.Atoi(last(follow(t, c, 0, func(e event) bool { return e.Type == eventlog.TypeStdout })).text)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestSignalOfTheProcessAlone: its group goes on, and the command has ended.
func TestSignalOfTheProcessAlone(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "trap '' TERM; sleep 1000 & echo $!; wait"})
	left := child(t, c)
	defer syscall.Kill(left, syscall.SIGKILL)
	if !c.Signal(syscall.SIGTERM) || !c.Signal(syscall.SIGKILL) {
		t.Error("the process was not there")
	}
	awaitEnd(t, c)
	status := c.Status()
	if status.ExitCode == nil || *status.ExitCode != 137 || status.Wait.Signal() != syscall.SIGKILL || status.TimedOut {
		t.Errorf("the status is %+v", status)
	}
	if gone(left) {
		t.Error("the child was killed, too")
	}
	if c.Signal(syscall.SIGKILL) {
		t.Error("a process that has ended was signalled")
	}
}

// TestAbruptTimeout: the group gets no signal before the one that kills it.
func TestAbruptTimeout(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	var c *command.Command
	output := ""
	for limit := time.Second / 2; output == ""; limit *= 2 { // a busy machine may take longer to start it
		c = start(t, m, command.Spec{
			Command: "trap 'echo TERM' TERM; sleep 1000 & echo $!; while :; do wait; done", Timeout: limit, Abrupt: true,
		})
		output = rebuild(all(t, c), eventlog.TypeStdout)
	}
	left, err := strconv.Atoi(strings.TrimSpace(output))
	if err != nil {
		t.Fatalf("output %q", output)
	}
	status := c.Status()
	if !status.TimedOut || status.ExitCode != nil || status.Wait.Signal() != syscall.SIGKILL {
		t.Errorf("the status is %+v", status)
	}
	wait.Until(t, "the end of the child", func() bool { return gone(left) })
}

// TestWaitStatus: it is there for every end, and the number of the process stays.
func TestWaitStatus(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "echo $$; exit 3"})
	if pid := child(t, c); pid != c.PID() {
		t.Errorf("the process is %d, not %d", pid, c.PID())
	}
	awaitEnd(t, c)
	if status := c.Status(); status.Wait.ExitStatus() != 3 || c.PID() == 0 {
		t.Errorf("the status is %+v, the number %d", status, c.PID())
	}
}

func TestAppendedInput(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	c := start(t, m, command.Spec{Argv: []string{"cat"}, Input: true})
	var group sync.WaitGroup
	const size = 300_000 // more than a pipe takes at once
	for _, letter := range "abcd" {
		group.Go(func() {
			if err := c.AppendInput(wait.Context(t), append(bytes.Repeat([]byte(string(letter)), size), '\n')); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for range 2 {
		if err := c.CloseInput(wait.Context(t)); err != nil {
			t.Error(err)
		}
	}
	lines := strings.Fields(rebuild(all(t, c), eventlog.TypeStdout))
	if len(lines) != 4 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		if len(line) != size || strings.Count(line, line[:1]) != size {
			t.Errorf("a line of %d bytes has %d of its first", len(line), strings.Count(line, line[:1]))
		}
	}
	if err := c.AppendInput(wait.Context(t), []byte("x")); !errors.Is(err, command.ErrConflict) {
		t.Errorf("input after the end: %v", err)
	}

	c = start(t, m, command.Spec{Command: "true"})
	if err := c.AppendInput(wait.Context(t), nil); !errors.Is(err, command.ErrConflict) {
		t.Errorf("input of a command without: %v", err)
	}
	if err := c.CloseInput(wait.Context(t)); !errors.Is(err, command.ErrConflict) {
		t.Errorf("the end of the input of a command without: %v", err)
	}
}

// TestAppendedInputThatIsNotRead: a call ends with its context, or with the command.
func TestAppendedInputThatIsNotRead(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	c := start(t, m, command.Spec{Command: "sleep 1000", Input: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.AppendInput(ctx, make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call whose time is over: %v", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- c.AppendInput(wait.Context(t), []byte("x")) }()
	c.Signal(syscall.SIGKILL)
	if err := wait.For(t, "the end of the call", failed); !errors.Is(err, command.ErrConflict) {
		t.Errorf("a command that ends: %v", err)
	}
}
