package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/execd/eventlog"
)

// processorTime is what this process has used, in user mode and in the kernel.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// leftBehind starts a command that leaves a process behind in its process group, and returns the group.
func leftBehind(t *testing.T, m *command.Manager, line string) int {
	t.Helper()
	c := start(t, m, command.Spec{Command: line + " & echo $$"})
	wait(t, c)
	group, err := strconv.Atoi(strings.TrimSpace(rebuild(all(t, c), eventlog.TypeStdout)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-group, syscall.SIGKILL) })
	return group
}

// Processes that write as fast as they can after their commands have ended cost the daemon a small part of a core, however many they are.
func TestLeftoverThatFloodsCostsNoCore(t *testing.T) {
	m := newManager(t)
	// The group is printed before anything else can fill the pipe: what floods starts with the other stream.
	for range 8 {
		leftBehind(t, m, "exec yes >&2")
	}
	const window = 2 * time.Second
	before := processorTime(t)
	time.Sleep(window) // the window of the measurement; nothing is waited for
	if used := processorTime(t) - before; used > window/5 {
		t.Errorf("8 processes that were left behind cost %v of processor time in %v", used, window)
	}
}

// The reading end of a leftover's pipe is closed soon after the leftover has ended, also when others flood.
func TestLeftoverThatEndsIsForgotten(t *testing.T) {
	m := newManager(t)
	wait(t, start(t, m, command.Spec{Command: "true"}))
	before := pipes(t)
	groups := make([]int, 40)
	for i := range groups {
		groups[i] = leftBehind(t, m, "exec yes >&2")
	}
	if now := pipes(t); now < before+len(groups) {
		t.Fatalf("%d pipes are open, %d were: nothing was left behind", now, before)
	}
	for _, group := range groups {
		if err := syscall.Kill(-group, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "their pipes are closed", func() bool { return pipes(t) <= before })
}

// What a leftover writes at a usual rate is taken without a delay that it could notice.
func TestLeftoverMayWriteMegabytes(t *testing.T) {
	m := newManager(t)
	marker := filepath.Join(t.TempDir(), "written")
	leftBehind(t, m, fmt.Sprintf("(head -c 4000000 /dev/zero; touch %s) >&2", marker))
	began := time.Now()
	eventually(t, "4 MB are taken", func() bool { _, err := os.Stat(marker); return err == nil })
	t.Logf("4 MB were taken in %v", time.Since(began))
}
