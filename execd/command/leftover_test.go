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
	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/test/wait"
)

// bytesRead returns how many bytes this process has read.
func bytesRead(t *testing.T) int64 {
	t.Helper()
	counters, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	if _, err := fmt.Sscanf(string(counters), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// leftBehind starts a command that leaves a process behind in its process group, and returns the
// group.
func leftBehind(t *testing.T, m *command.Manager, line string) int {
	t.Helper()
	c := start(t, m, command.Spec{Command: line + " & echo $$"})
	awaitEnd(t, c)
	group, err := strconv.Atoi(strings.TrimSpace(rebuild(all(t, c), eventlog.TypeStdout)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Kill(-group, syscall.SIGKILL) })
	return group
}

// Processes that write as fast as they can after their commands have ended are read at the rate
// that leftover.go gives, at which they cost a small part of a core. Unhindered, one is read at
// hundreds of MiB a second.
func TestLeftoverThatFloodsCostsNoCore(t *testing.T) {
	m := newManager(t)
	const count = 8
	// The group is printed before anything else can fill the pipe: what floods starts with the
	// other stream.
	for range count {
		leftBehind(t, m, "exec yes >&2")
	}
	const window = 2 * time.Second
	before, began := bytesRead(t), time.Now()
	time.Sleep(window) // the window of the measurement; nothing is waited for
	read := bytesRead(t) - before
	turns := int64(time.Since(began)/(10*time.Millisecond)) + 1
	if most := turns * count * (64 << 10); read == 0 || read > most {
		t.Errorf("of %d processes that were left behind %d bytes are read in %d turns, want 1 to %d", count, read, turns, most)
	}
}

// The reading end of a leftover's pipe is closed soon after the leftover has ended, also when
// others flood.
func TestLeftoverThatEndsIsForgotten(t *testing.T) {
	m := newManager(t)
	awaitEnd(t, start(t, m, command.Spec{Command: "true"}))
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
	wait.Until(t, "their pipes are closed", func() bool { return pipes(t) <= before })
}

// What a leftover writes at a usual rate is taken without a delay that it could notice.
func TestLeftoverMayWriteMegabytes(t *testing.T) {
	m := newManager(t)
	marker := filepath.Join(t.TempDir(), "written")
	leftBehind(t, m, fmt.Sprintf("(head -c 4000000 /dev/zero; touch %s) >&2", marker))
	began := time.Now()
	wait.Until(t, "4 MB are taken", func() bool { _, err := os.Stat(marker); return err == nil })
	t.Logf("4 MB were taken in %v", time.Since(began))
}
