package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

// TestWithoutTemporaryDirectories: a container has no directory for temporary files, and SQLite
// needs none, however much a statement changes.
func TestWithoutTemporaryDirectories(t *testing.T) {
	const inside = "STORE_TEST_WITHOUT_TEMPORARY_FOLDERS"
	directory := os.Getenv(inside)
	if directory == "" { // in a process with mounts of its own
		child := wait.Command(t, "/proc/self/exe", "-test.run=^TestWithoutTemporaryDirectories$", "-test.v")
		child.Env = append(os.Environ(), inside+"="+t.TempDir(), "TMPDIR=/proc")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if output, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		return
	}
	mount := func(source, target, kind string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			t.Fatalf("mount %s: %v", target, err)
		}
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	data := "/mnt"
	mount(directory, data, "", unix.MS_BIND)
	for _, path := range []string{"/var/tmp", "/usr/tmp", "/tmp"} {
		if _, err := os.Stat(path); err == nil {
			mount("tmpfs", path, "tmpfs", unix.MS_RDONLY)
		}
	}
	t.Chdir("/proc")
	s := open(t, filepath.Join(data, "store"))
	insert(t, s, record("a"))
	const count = 1000
	events := make([]lifecycle.Event, count)
	for i := range events {
		events[i] = event("a", birth)
	}
	if err := s.Save(t.Context(), record("a"), events...); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.Go(func() error { return s.TrimEvents(t.Context(), count, birth.Add(time.Hour)) })
	for i := range 20 {
		group.Go(func() error { return s.Insert(t.Context(), record(fmt.Sprint("b", i)), nil) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if left := page(t, s, lifecycle.EventQuery{}).Events; len(left) > 0 {
		t.Errorf("%d events are left", len(left))
	}
}
