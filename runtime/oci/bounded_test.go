package oci_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// TestBounded: a container writes as much as it may and gets ENOSPC then, and its file system goes
// with it, whoever runs meanwhile.
func TestBounded(t *testing.T) {
	for _, handler := range runtimes(t) {
		for _, users := range []oci.UserNamespaces{oci.UserNamespacesOn, oci.UserNamespacesOff} {
			if handler == "runsc" && users == oci.UserNamespacesOn {
				continue // it has none
			}
			t.Run(fmt.Sprintf("%s/user namespaces %s", handler, users), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, handler)
				s.Users, s.DiskBytes = users, 64<<20
				testBounded(t, s)
			})
		}
	}
}

func testBounded(t *testing.T, s site) {
	e := s.mustOpen(t)
	imageID := loadProbe(t, e)

	for _, path := range []string{"/file", "/etc/hosts"} { // all of the host's that it can write to
		log, ended := output(t, e, probe(imageID, "fill", path, "100"))
		if written, err := strconv.Atoi(strings.TrimSpace(log)); err != nil || written < 48 || written > 64 || ended.ExitCode != 0 {
			t.Errorf("100 MiB with a bound of 64 to %s: it ended with %d and wrote %q MiB", path, ended.ExitCode, log)
		}
	}
	s.checkNoLoopDevice(t)

	removed := occupy(t, e, imageID)
	if len(s.loopDevices(t)) != 1 {
		t.Errorf("loop devices: %v, want that of one container", s.loopDevices(t))
	}
	remove(t, e, removed)
	s.checkNoLoopDevice(t)

	// The next service knows the file systems of the first one's containers.
	kept := occupy(t, e, imageID)
	closeEngine(t, e)
	if len(s.loopDevices(t)) != 1 {
		t.Errorf("loop devices: %v, want that of the container that runs on", s.loopDevices(t))
	}
	e = s.mustOpen(t)
	remove(t, e, kept)
	s.checkNoLoopDevice(t)
	closeEngine(t, e)
	s.checkNothingLeft(t)
}

// occupy starts a container that writes 40 MiB and goes on.
func occupy(t *testing.T, e *oci.Engine, imageID string) (id string) {
	t.Helper()
	id = start(t, e, probe(imageID, "occupy", "/file", "40"))
	wait.Until(t, "40 MiB are written", func() bool {
		log, err := e.Logs(t.Context(), id, 1)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log, "40")
	})
	return id
}

func remove(t *testing.T, e *oci.Engine, id string) {
	t.Helper()
	began := time.Now()
	if err := e.Remove(t.Context(), id); err != nil {
		t.Errorf("Remove: %v", err)
	}
	t.Logf("removed within %v", time.Since(began))
}

// TestBoundRefuses: a bound that cannot be kept is an error of Open, which names it.
func TestBoundRefuses(t *testing.T) {
	s := newSite(t, "crun")
	s.DiskBytes = 1
	e, err := s.open(t.Context(), t.Output())
	if err == nil {
		closeEngine(t, e)
	}
	if err == nil || !strings.Contains(err.Error(), "cannot bound the writes of sandboxes: a file system of 1 bytes: the size must be from 16777216 to") {
		t.Errorf("%v", err)
	}
}

// TestFullDiskIsFreed: a container that has filled the disk, to the last block and without a bound,
// can be removed, which makes room.
func TestFullDiskIsFreed(t *testing.T) {
	s := newSite(t, "crun")
	disk := smallDisk(t, s)
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	id := occupy(t, e, loadProbe(t, e))
	fill(t, disk)
	remove(t, e, id)
	wait.Until(t, "the file system has room for what the container wrote", func() bool {
		var free unix.Statfs_t
		if err := unix.Statfs(disk, &free); err != nil {
			t.Fatal(err)
		}
		return free.Bavail*uint64(free.Bsize) >= 40<<20
	})
}

// TestFullDiskAtOpen: an Engine that bounds what a container writes opens on a full disk, reports
// that from each start, and starts containers as soon as there is room.
func TestFullDiskAtOpen(t *testing.T) {
	s := newSite(t, "crun")
	s.DiskBytes = 16 << 20
	disk := smallDisk(t, s)
	e := s.mustOpen(t)
	id, err := e.Create(t.Context(), probe(loadProbe(t, e), "exit", "3"))
	if err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	rest := fill(t, disk)
	e = s.mustOpen(t)
	defer closeEngine(t, e)
	if err := e.Start(t.Context(), id); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a start on a full disk: %v", err)
	}
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatalf("a start when there is room: %v", err)
	}
	if ended := waitEnd(t, e, id); ended.ExitCode != 3 {
		t.Errorf("the container ended with %d, want 3", ended.ExitCode)
	}
	remove(t, e, id)
}

// smallDisk gives the data of the site a disk of 96 MiB, and returns where it is.
func smallDisk(t *testing.T, s site) string {
	t.Helper()
	disk := filepath.Dir(s.Directory)
	if err := unix.Mount("oci-test", disk, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill takes up the rest of a disk, to the last block, and returns the file that does.
func fill(t *testing.T, disk string) string {
	t.Helper()
	rest, err := os.Create(filepath.Join(disk, "rest"))
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = rest.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return rest.Name()
}
