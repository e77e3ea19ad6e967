package remove_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/remove"
)

// TestDeepTree: a tree deeper than this process may have files open, and wider at many levels, is
// removed; what its links name is not.
func TestDeepTree(t *testing.T) {
	directory := t.TempDir()
	kept := filepath.Join(directory, "kept")
	if err := os.MkdirAll(filepath.Join(kept, "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(directory, "tree")
	if err := os.Mkdir(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	makeDeep(t, tree, kept)
	limitFiles(t, 200)
	if err := remove.All(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(kept, "inner")); err != nil {
		t.Error(err)
	}
}

// makeDeep makes 2000 levels, with files, links and directories beside them.
func makeDeep(t *testing.T, directory, target string) {
	t.Helper()
	at, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for level := 0; err == nil && level < 2000; level++ {
		err = errors.Join(unix.Mkdirat(at, "d", 0o700), unix.Mkdirat(at, "beside", 0o700), unix.Symlinkat(target, at, "link"),
			unix.Mknodat(at, "file", unix.S_IFREG|0o600, 0))
		next := -1
		if err == nil {
			next, err = unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(at)
		at = next
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(at)
}

// limitFiles bounds the descriptors of this process until the test ends.
func limitFiles(t *testing.T, files uint64) {
	t.Helper()
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
}

// TestMountPoint: what is mounted in a tree is emptied, however deep, and stays.
func TestMountPoint(t *testing.T) {
	directory := t.TempDir()
	tree := filepath.Join(directory, "tree")
	mounted := filepath.Join(tree, strings.Repeat("d/", 70)+"mounted")
	if err := os.MkdirAll(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	// The removal moves it.
	t.Cleanup(func() {
		for _, mount := range mountsBelow(t, directory) {
			if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	if err := os.MkdirAll(filepath.Join(mounted, strings.Repeat("d/", 70)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := remove.All(t.Context(), tree); !errors.Is(err, unix.EBUSY) {
		t.Errorf("the error is %v", err)
	}
	left := mountsBelow(t, directory)
	if len(left) != 1 {
		t.Fatalf("the mount points are %q", left)
	}
	if entries, err := os.ReadDir(left[0]); err != nil || len(entries) > 0 {
		t.Errorf("left in it: %v, %v", entries, err)
	}
}

func mountsBelow(t *testing.T, directory string) (found []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if path := strings.Fields(line)[1]; strings.HasPrefix(path, directory+"/") {
			found = append(found, path)
		}
	}
	return found
}

func TestOthers(t *testing.T) {
	directory := t.TempDir()
	file, link := filepath.Join(directory, "file"), filepath.Join(directory, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(directory, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, file, file, filepath.Join(directory, "no", "directory")} { // the second time it is gone
		if err := remove.All(t.Context(), path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := remove.All(ended, directory); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	if _, err := os.Stat(directory); err != nil {
		t.Error(err)
	}
}
