package oci_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// TestRemoveDeepTree: a tree deeper than this process may have files open is removed.
func TestRemoveDeepTree(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	if _, err := e.MakeVolume(t.Context(), "deep", nil); err != nil {
		t.Fatal(err)
	}
	makeDeepTree(t, filepath.Join(s.Directory, "volumes", "deep", "data"))
	if err := e.RemoveVolume(t.Context(), "deep"); err != nil {
		t.Fatal(err)
	}
	s.waitEmptyTrash(t)
}

// TestStartAgain: a start that failed when the container's program had run already leaves what that
// has written, and an end. Another start has nothing to do with either.
func TestStartAgain(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer func() { closeEngine(t, e) }()
	id, err := e.Create(t.Context(), probe(loadProbe(t, e), "count"))
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(s.Directory, "containers", id)
	if err := os.MkdirAll(filepath.Join(at, "disk", "upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	makeDeepTree(t, filepath.Join(at, "disk", "upper"))
	if err := os.WriteFile(filepath.Join(at, "end.json"), []byte(`{"exitCode":7,"signal":0,"at":"2026-01-01T00:00:00Z"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.waitEmptyTrash(t)
	closeEngine(t, e)
	e = s.mustOpen(t)
	if c := inspect(t, e, id); c.Status != engine.StatusRunning {
		t.Errorf("a container that runs is %s, exit code %d", c.Status, c.ExitCode)
	}
	removeAll(t, e)
}

// makeDeepTree makes a tree that is deeper than this process may have files open until the test
// ends.
func makeDeepTree(t *testing.T, directory string) {
	t.Helper()
	const files, levels = 1000, 3000
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	at, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(at, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Symlinkat("/", at, "link"); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(at); err != nil {
			t.Fatal(err)
		}
		at = next
	}
	if err := unix.Close(at); err != nil {
		t.Fatal(err)
	}
}

func (s site) waitEmptyTrash(t *testing.T) {
	t.Helper()
	wait.Until(t, "the trash is empty", func() bool {
		entries, err := os.ReadDir(filepath.Join(s.Directory, "trash"))
		return err == nil && len(entries) == 0
	})
}
