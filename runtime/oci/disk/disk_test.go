package disk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/test/wait"
)

const mib = 1 << 20

func newFormat(t testing.TB, size int64) *disk.Format {
	t.Helper()
	format, err := disk.NewFormat(t.Context(), t.TempDir(), size, disk.Lost)
	if err != nil {
		t.Fatal(err)
	}
	return format
}

// make1 makes a file system, and mounts it at a directory until the test ends.
func make1(t testing.TB, format *disk.Format, path string) (made *disk.Disk, at string) {
	t.Helper()
	made, err := format.Make(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = made.Close() })
	mount, err := made.Mount()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mount.Close() }()
	at = t.TempDir()
	if err := unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, at) })
	return made, at
}

func unmount(t testing.TB, at string) {
	if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
		t.Error(err)
	}
}

// allocated returns how much room a file takes.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		t.Fatal(err)
	}
	return info.Blocks * 512
}

// attached reports whether a loop device has the file.
func attached(t testing.TB, path string) bool {
	t.Helper()
	all, err := disk.FindAttached()
	if err != nil {
		t.Fatal(err)
	}
	opened, err := all.Open(path)
	if err == nil {
		_ = opened.Close()
		return true
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return false
}

// TestFull: no more than the size can be written, what is deleted can be written again and is given
// back, and an empty one takes no room.
func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	_, at := make1(t, newFormat(t, 64*mib), path)
	if took := allocated(t, path); took > mib {
		t.Errorf("an empty file system of 64 MiB takes %d bytes", took)
	}
	file := filepath.Join(at, "file")
	for range 3 {
		err := os.WriteFile(file, bytes.Repeat([]byte("x"), 65*mib), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("65 MiB in 64 MiB: %v, want ENOSPC", err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 50*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		if took := allocated(t, path); took < 50*mib || took > 65*mib {
			t.Errorf("50 MiB were written, and the file takes %d bytes", took)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		wait.Until(t, "what was deleted is given back", func() bool { return allocated(t, path) < 2*mib })
	}
	// Inodes are bounded, too, and enough for small files.
	count := 0
	for ; count < 10_000; count++ {
		if err := os.WriteFile(filepath.Join(at, strings.Repeat("n", 1+count%100)+string(rune('a'+count%26))+time.Now().Format("150405.000000000")), nil, 0o600); err != nil {
			break
		}
	}
	if count < 2000 || count == 10_000 {
		t.Errorf("%d files in 64 MiB", count)
	}
}

// TestDiscard: the last unmount after it does not wait for the disk, and nothing is left.
func TestDiscard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	made, at := make1(t, newFormat(t, 2048*mib), path)
	if err := os.WriteFile(filepath.Join(at, "file"), bytes.Repeat([]byte("x"), 200*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := made.Discard(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "other"), []byte("x"), 0o600); err == nil {
		t.Error("the discarded disk can still be written to")
	}
	began := time.Now()
	unmount(t, at)
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "no loop device", func() bool { return !attached(t, path) })
	t.Logf("unmounted %v after Discard, with %d of 200 MiB in the file", time.Since(began), allocated(t, path)/mib)
}

// TestOpenAgain: another process finds the file system for as long as something uses it.
func TestOpenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	made, at := make1(t, newFormat(t, 64*mib), path)
	if err := made.Mkdir("upper", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := made.Close(); err != nil { // as a service that was killed
		t.Fatal(err)
	}
	all, err := disk.FindAttached()
	if err != nil {
		t.Fatal(err)
	}
	again, err := all.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(at, "upper")); err != nil || info.Mode() != fs.ModeDir|0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if err := again.Discard(); err != nil {
		t.Error(err)
	}
	unmount(t, at)
	if !attached(t, path) {
		t.Error("the disk was unmounted while it was held")
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	wait.Until(t, "no loop device", func() bool { return !attached(t, path) })
	if _, err := all.Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want not exist: the device may be another file's by now", err)
	}
}

// TestMakeTogether: callers at once do not find the same free device. Other programs of this
// machine may take one meanwhile, hence not a single try.
func TestMakeTogether(t *testing.T) {
	format, directory := newFormat(t, disk.MinBytes), t.TempDir()
	format.SetAttachTries(3)
	const callers = 64
	var ready, group sync.WaitGroup
	ready.Add(callers)
	for i := range callers {
		group.Go(func() {
			ready.Done()
			ready.Wait()
			made, err := format.Make(filepath.Join(directory, strconv.Itoa(i)))
			if err != nil {
				t.Error(err)
				return
			}
			_ = made.Discard()
			_ = made.Close()
		})
	}
	group.Wait()
}

func TestNewFormatRefuses(t *testing.T) {
	for _, size := range []int64{-1, 0, disk.MinBytes - 1, disk.MaxBytes + 1} {
		if _, err := disk.NewFormat(t.Context(), t.TempDir(), size, disk.Lost); err == nil {
			t.Errorf("%d bytes are accepted", size)
		}
	}
	for _, size := range []int64{disk.MinBytes, disk.MaxBytes} {
		path := filepath.Join(t.TempDir(), "disk")
		_, at := make1(t, newFormat(t, size), path)
		if err := os.WriteFile(filepath.Join(at, "file"), []byte("x"), 0o600); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if took := allocated(t, path); took > 8*mib {
			t.Errorf("%d bytes: an empty one takes %d", size, took)
		}
	}
}

func BenchmarkMake(b *testing.B) {
	format := newFormat(b, 10<<30)
	directory := b.TempDir()
	for b.Loop() {
		path := filepath.Join(directory, "disk")
		made, err := format.Make(path)
		if err != nil {
			b.Fatal(err)
		}
		_ = made.Discard()
		_ = made.Close()
		_ = os.Remove(path)
	}
}

// TestReopenAfterCrash: what was synced is in a file system that is mounted from the state that the
// host's disk has at that moment, as after a loss of power, and the smallest one has room for its
// journal.
func TestReopenAfterCrash(t *testing.T) {
	format, err := disk.NewFormat(t.Context(), t.TempDir(), disk.MinBytes, disk.Journaled)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "filesystem")
	_, at := make1(t, format, path)
	const content = "on the disk"
	for i := range 100 { // more metadata than one block
		directory := filepath.Join(at, "directory", strconv.Itoa(i))
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(filepath.Join(directory, "file"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteString(content)
		if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	after := filepath.Join(t.TempDir(), "filesystem")
	disks, err := os.ReadFile(path) // while it is mounted
	if err := errors.Join(err, os.WriteFile(after, disks, 0o600)); err != nil {
		t.Fatal(err)
	}
	again, err := disk.Reopen(after)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	for i := range 100 {
		read, err := os.ReadFile(again.Path(filepath.Join("directory", strconv.Itoa(i), "file")))
		if err != nil || string(read) != content {
			t.Errorf("file %d: %q, %v", i, read, err)
		}
	}
}

// TestReopenBroken: only what can never be mounted is broken.
func TestReopenBroken(t *testing.T) {
	directory := t.TempDir()
	damaged := filepath.Join(directory, "damaged")
	if err := os.WriteFile(damaged, make([]byte, disk.MinBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(directory, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{damaged, empty, filepath.Join(directory, "missing")} {
		opened, err := disk.Reopen(path)
		if err == nil {
			_ = opened.Close()
		}
		if !errors.Is(err, disk.ErrBroken) {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
}
