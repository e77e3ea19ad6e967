package flock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/flock"
	"sandbox.internal/test/wait"
)

// open opens the same file each time.
func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

func TestExclusive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first := open(t, path)
	if err := flock.Exclusive(first); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := flock.Exclusive(open(t, path)); !errors.Is(err, flock.ErrHeld) || time.Since(began) < flock.Patience {
		t.Errorf("a file that is locked: %v after %v", err, time.Since(began))
	}
	_ = first.Close()
	if err := flock.Exclusive(open(t, path)); err != nil {
		t.Errorf("once its holder has closed it: %v", err)
	}
}

// TestSharedUntilExec has another descriptor of the holder's open file outlive the holder, as the
// one of a process that it was starting.
func TestSharedUntilExec(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	holder := open(t, path)
	if err := flock.Exclusive(holder); err != nil {
		t.Fatal(err)
	}
	shared, err := unix.Dup(int(holder.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_ = holder.Close()
	released := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() {
		defer close(released)
		_ = unix.Close(shared)
	})
	if err := flock.Exclusive(open(t, path)); err != nil {
		t.Error(err)
	}
	wait.For(t, "the release of the lock", released)
}
