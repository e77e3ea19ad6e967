package files_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

func TestRemoveFiles(t *testing.T) {
	f, root := newFiles(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("file"), "")
	write(t, at("kept/file"), "")
	must(t, os.Symlink("kept", at("link")))
	must(t, os.Symlink("nowhere", at("broken")))
	must(t, unix.Mkfifo(at("fifo"), 0o600))

	must(t, f.RemoveFiles([]string{"file", "./file", at("file"), "link", "broken", "fifo"}))
	for _, name := range []string{"file", "link", "broken", "fifo"} {
		wantEqual(t, name+" exists", exists(t, at(name)), false)
	}
	wantEqual(t, "target of the link exists", exists(t, at("kept/file")), true)
}

func TestRemoveFilesRemovesNothingWhenOneCannotBe(t *testing.T) {
	tests := []struct {
		name, path string
		kind       files.Kind
		part       string
	}{
		{"missing", "missing", files.KindNotFound, "/missing: no such file"},
		{"directory", "home", files.KindInvalid, "/home: is a directory"},
		{"empty", "", files.KindInvalid, "must not be empty"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "file"), "")
			wantError(t, f.RemoveFiles([]string{"file", test.path}), test.kind, test.part)
			wantEqual(t, "file exists", exists(t, filepath.Join(root, "file")), true)
		})
	}
}

func TestRemoveDirectories(t *testing.T) {
	f, root := newFiles(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("dir/a/b/file"), "")
	write(t, at("kept/file"), "")
	must(t, os.Symlink(at("kept"), at("dir/link")))
	mkdir(t, at("empty"))

	must(t, f.RemoveDirectories(t.Context(), []string{"dir", "dir/a", "dir/", "empty"}))
	wantEqual(t, "dir exists", exists(t, at("dir")), false)
	wantEqual(t, "empty exists", exists(t, at("empty")), false)
	wantEqual(t, "target of a link inside exists", exists(t, at("kept/file")), true)
}

func TestRemoveDirectoriesRemovesNothingWhenOneCannotBe(t *testing.T) {
	// Only places where a failing check would do no harm are tried for real.
	tests := []struct {
		name, path string
		kind       files.Kind
		part       string
	}{
		{"missing", "missing", files.KindNotFound, "/missing: no such file"},
		{"file", "file", files.KindInvalid, "/file: is not a directory"},
		{"link to a directory", "link", files.KindInvalid, "/link: is not a directory"},
		{"system root", "/proc", files.KindInvalid, "/proc: must not be removed"},
		{"system root, not clean", "/proc/../proc/", files.KindInvalid, "/proc: must not be removed"},
		{"system root behind a link", "slash/proc", files.KindInvalid, "/slash/proc: must not be removed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "file"), "")
			mkdir(t, filepath.Join(root, "dir"))
			must(t, os.Symlink("dir", filepath.Join(root, "link")))
			must(t, os.Symlink("/", filepath.Join(root, "slash")))
			wantError(t, f.RemoveDirectories(t.Context(), []string{"dir", test.path}), test.kind, test.part)
			wantEqual(t, "dir exists", exists(t, filepath.Join(root, "dir")), true)
		})
	}
}

// TestRemoveDirectoriesOfAnyDepth: a removal takes few of the descriptors that the daemon needs for
// all else.
func TestRemoveDirectoriesOfAnyDepth(t *testing.T) {
	f, root := newFiles(t)
	tree := filepath.Join(root, "tree")
	mkdir(t, tree)
	at, err := unix.Open(tree, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 1000 {
		must(t, unix.Mkdirat(at, "d", 0o700))
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)) + 80, Max: before.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }()
	must(t, f.RemoveDirectories(t.Context(), []string{"tree"}))
	wantEqual(t, "the tree exists", exists(t, tree), false)
}

func TestRemoveDirectoriesStopsWithItsContext(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "dir/file"), "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.RemoveDirectories(ctx, []string{"dir"}); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	wantEqual(t, "the file exists", exists(t, filepath.Join(root, "dir/file")), true)
}

func TestRemoveDirectoriesStopsAtAMountPoint(t *testing.T) {
	f, _ := newFiles(t)
	disk := mountTmpfs(t, "")
	wantError(t, f.RemoveDirectories(t.Context(), []string{disk}), files.KindConflict, disk, "busy")
}
