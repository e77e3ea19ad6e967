package command_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

func TestInterruptReachesTheWholeGroup(t *testing.T) {
	m := newManager(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	c := start(t, m, command.Spec{Command: fmt.Sprintf("sh -c 'trap \"\" TERM; echo $$ > %s; while :; do sleep 0.05; done' & wait", pidFile)})
	var pid int
	wait.Until(t, "the child has started", func() bool {
		text, _ := os.ReadFile(pidFile)
		_, err := fmt.Sscan(string(text), &pid)
		return err == nil
	})
	if err := m.Interrupt(c.ID()); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, c)
	wait.Until(t, "a child that ignores SIGTERM is gone", func() bool { return gone(pid) })
	if status := c.Status(); status.Error != "the command was interrupted" || *status.ExitCode != 143 {
		t.Errorf("status = %+v, exit code %d", status, *status.ExitCode)
	}
	if err := m.Interrupt("unknown"); !errors.Is(err, command.ErrNotFound) {
		t.Errorf("interrupt of an unknown command: %v", err)
	}
}

// A shell ends at the signal; the program that it waits for may have something to finish, and its
// output belongs to the command.
func TestInterruptLetsTheGroupEnd(t *testing.T) {
	t.Parallel()
	// An end that came with the kill would not come while the test waits.
	m := newManager(t, func(o *command.Options) { o.KillDelay = time.Hour })
	const program = `sh -c 'trap "sleep 0.2; echo saved; exit" TERM; echo ready; while :; do sleep 0.01; done'`
	for _, line := range []string{program + " & wait", program + "; echo $?"} {
		c := start(t, m, command.Spec{Command: line})
		follow(t, c, 0, func(e event) bool { return e.Type == eventlog.TypeStdout })
		if err := m.Interrupt(c.ID()); err != nil {
			t.Fatal(err)
		}
		events := all(t, c)
		if got := rebuild(events, eventlog.TypeStdout); got != "ready\nsaved\n" {
			t.Errorf("%s: stdout = %q", line, got)
		}
		if status := c.Status(); status.Error != "the command was interrupted" || *status.ExitCode != 143 {
			t.Errorf("%s: status = %+v, exit code %d", line, status, *status.ExitCode)
		}
	}
}

// TestStopKillsWhatIsLeftOfAGroup: the shell has ended when the time is over.
func TestStopKillsWhatIsLeftOfAGroup(t *testing.T) {
	t.Parallel()
	// What the end of the context does not kill is not killed at all.
	m := newManager(t, func(o *command.Options) { o.KillDelay = time.Hour })
	c := start(t, m, command.Spec{Command: `sh -c 'trap "" TERM; echo $$; while :; do sleep 0.05; done' & wait`})
	var pid int
	events := follow(t, c, 0, func(e event) bool { return e.Type == eventlog.TypeStdout })
	if _, err := fmt.Sscan(last(events).text, &pid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	m.Stop(ctx)
	wait.Until(t, "a child that ignores SIGTERM is gone", func() bool { return gone(pid) })
}

// A command that ends itself well when it is interrupted has succeeded, in its stream and in its
// status.
func TestInterruptedCommandThatSucceeds(t *testing.T) {
	m := newManager(t)
	for line, want := range map[string]struct {
		last   eventlog.Type
		code   int
		reason string
	}{
		"trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done": {eventlog.TypeComplete, 0, ""},
		"trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done": {eventlog.TypeError, 5, "the command was interrupted"},
	} {
		c := start(t, m, command.Spec{Command: line})
		follow(t, c, 0, func(e event) bool { return e.Type == eventlog.TypeStdout })
		if err := m.Interrupt(c.ID()); err != nil {
			t.Fatal(err)
		}
		end := last(all(t, c))
		exit, err := command.ParseExit([]byte(end.text))
		if err != nil || end.Type != want.last || *exit.Code != want.code || exit.Reason != want.reason {
			t.Errorf("%s: the stream ends with %+v (%v)", line, end, err)
		}
		if status := c.Status(); *status.ExitCode != want.code || status.Error != want.reason {
			t.Errorf("%s: status %+v", line, status)
		}
	}
}

func TestStubbornCommandIsKilled(t *testing.T) {
	m := newManager(t)
	began := time.Now()
	const timeout = 2 * time.Second // in which the shell has to get as far as its trap
	c := start(t, m, command.Spec{Command: "trap '' TERM; while :; do sleep 0.05; done", Timeout: timeout})
	awaitEnd(t, c)
	if took := time.Since(began); took < timeout+2*time.Second {
		t.Errorf("killed after %v, want SIGKILL 2 s after SIGTERM", took)
	}
}
