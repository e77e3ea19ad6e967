package main_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"sandbox.internal/test/wait"
)

// TestIdleEntrypoint: process 1 recognises itself, so the entrypoint that does nothing is no
// process, and ends with the daemon at a signal.
func TestIdleEntrypoint(t *testing.T) {
	t.Parallel()
	init := filepath.Join(binaries, "execd-init")
	address, pid, _ := contained(t, init, "idle")
	wait.Until(t, "the daemon answers", func() bool { return proves(address) })
	if !hasChild(t, pid, "serve") || hasChild(t, pid, "idle") {
		t.Error("the children of process 1 are not the daemon alone")
	}
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	wait.Until(t, "the daemon is gone", func() bool { return !proves(address) })
}
