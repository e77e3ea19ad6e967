package treecopy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/treecopy"
	"sandbox.internal/test/wait"
)

// job is a copy of a source directory.
type job struct {
	*treecopy.Copy
	source, target string
	to             *os.File
}

func newJob(t *testing.T) job {
	t.Helper()
	directory := t.TempDir()
	open := func(name string) *os.File {
		path := filepath.Join(directory, name)
		must(t, os.Mkdir(path, 0o755))
		file, err := os.Open(path)
		must(t, err)
		t.Cleanup(func() { _ = file.Close() })
		return file
	}
	from, staging, to := open("source"), open("staging"), open("target")
	return job{Copy: &treecopy.Copy{From: from, Staging: staging}, source: from.Name(), target: to.Name(), to: to}
}

func (j job) finish(t *testing.T) treecopy.Result {
	t.Helper()
	result, err := j.Compare(t.Context(), j.to, time.Now())
	must(t, err)
	must(t, j.Complete(t.Context(), j.to, &result))
	return result
}

// stageAll stages until nothing is left.
func (j job) stageAll(t *testing.T) {
	t.Helper()
	wait.Until(t, "everything is staged", func() bool {
		left, err := j.Stage(t.Context())
		must(t, err)
		return left.Files == 0
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return string(content)
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var info unix.Stat_t
	must(t, unix.Lstat(path, &info))
	return info
}

// TestKinds: a copy has every kind of file that an upper layer can have, with its attributes.
func TestKinds(t *testing.T) {
	j := newJob(t)
	at := func(name string) string { return filepath.Join(j.source, name) }
	write(t, at("directory/file"), "content")
	write(t, at("setuid"), "program")
	must(t, os.Chown(at("setuid"), 5, 6))
	must(t, unix.Chmod(at("setuid"), 0o6755))
	must(t, unix.Setxattr(at("setuid"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, os.Link(at("setuid"), at("directory/again")))
	must(t, os.Symlink("nowhere", at("link")))
	must(t, os.Lchown(at("link"), 7, 8))
	must(t, unix.Lsetxattr(at("link"), "trusted.test", []byte("of a link"), 0))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	must(t, unix.Mknod(at("socket"), unix.S_IFSOCK|0o640, 0))
	must(t, unix.Mknod(at("whiteout"), unix.S_IFCHR, 0))
	must(t, unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, os.Mkdir(at("opaque"), 0o700))
	must(t, unix.Setxattr(at("opaque"), "trusted.overlay.opaque", []byte("y"), 0))
	must(t, unix.Setxattr(at("opaque"), "trusted.overlay.origin", []byte("of that upper layer alone"), 0))
	must(t, unix.Setxattr(at("opaque"), "user.empty", nil, 0))
	must(t, os.Truncate(at("setuid"), 1<<30))
	must(t, unix.Chmod(at("setuid"), 0o6755))
	when := []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: 3, Nsec: 4}}
	for _, name := range []string{"directory/file", "setuid", "link", "fifo", "opaque", "directory", "."} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at(name), when, unix.AT_SYMLINK_NOFOLLOW))
	}
	result := j.finish(t)
	names := 0
	must(t, filepath.WalkDir(j.source, func(path string, _ fs.DirEntry, err error) error {
		must(t, err)
		below, _ := filepath.Rel(j.source, path)
		copied := filepath.Join(j.target, below)
		want, got := stat(t, path), stat(t, copied)
		if got.Mode != want.Mode || got.Uid != want.Uid || got.Gid != want.Gid || got.Rdev != want.Rdev ||
			got.Mtim != want.Mtim || got.Mode&unix.S_IFMT != unix.S_IFDIR && (got.Size != want.Size || got.Nlink != want.Nlink || got.Blocks != want.Blocks) {
			t.Errorf("%s is %+v, want %+v", below, got, want)
		}
		for _, attribute := range []string{"security.capability", "trusted.test", "trusted.overlay.opaque", "user.empty"} {
			var wanted, has [100]byte
			n, err := unix.Lgetxattr(path, attribute, wanted[:])
			m, copyErr := unix.Lgetxattr(copied, attribute, has[:])
			if err != copyErr || n != m || wanted != has { //nolint:errorlint // numbers
				t.Errorf("%s: the attribute %s is %q, %v, want %q, %v", below, attribute, has[:max(m, 0)], copyErr, wanted[:max(n, 0)], err)
			}
		}
		names++
		return nil
	}))
	if _, err := unix.Getxattr(filepath.Join(j.target, "opaque"), "trusted.overlay.origin", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the attribute of an upper layer: %v", err)
	}
	if result.Files != names-1 || result.Bytes == 0 || result.Bytes != result.Exclusive {
		t.Errorf("of %d names: %+v", names-1, result)
	}
}

// regular is how many of the entries are files of these tests.
func regular(index treecopy.Index) (files int) {
	for _, entry := range index {
		if entry.Path != "" && entry.Path != "directory" {
			files++
		}
	}
	return files
}

// TestUnchangedFilesAreLinked: the next copy links what has not changed, whatever its path is, and
// copies what has, also where size and time of change are the same.
func TestUnchangedFilesAreLinked(t *testing.T) {
	first, second := newJob(t), newJob(t)
	second.From, second.source = first.From, first.source
	for _, name := range []string{"same", "content", "mode", "linked", "directory/moved"} {
		write(t, filepath.Join(first.source, name), name)
	}
	first.stageAll(t)
	result := first.finish(t)
	if files := regular(result.Index); files != 5 {
		t.Errorf("the index has %d files: %v", files, result.Index)
	}
	at := func(name string) string { return filepath.Join(first.source, name) }
	before := stat(t, at("content"))
	write(t, at("content"), "CONTENT")
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("content"), []unix.Timespec{before.Atim, before.Mtim}, 0))
	must(t, os.Chmod(at("mode"), 0o600))
	must(t, os.Link(at("linked"), at("other")))
	must(t, os.Rename(at("directory"), at("renamed")))

	index := filepath.Join(t.TempDir(), "index")
	must(t, treecopy.WriteIndex(index, result.Index))
	read1, err := treecopy.ReadIndex(index)
	must(t, err)
	second.Previous = &treecopy.Tree{Root: first.to, Index: read1}
	second.finish(t)
	for name, linked := range map[string]bool{"same": true, "renamed/moved": true, "content": false, "mode": false, "linked": false} {
		earlier := strings.Replace(name, "renamed", "directory", 1)
		if got := stat(t, filepath.Join(first.target, earlier)).Ino == stat(t, filepath.Join(second.target, name)).Ino; got != linked {
			t.Errorf("%s is linked: %v, want %v", name, got, linked)
		}
	}
	if got := read(t, filepath.Join(second.target, "content")); got != "CONTENT" {
		t.Errorf("content is %q", got)
	}
	if stat(t, filepath.Join(second.target, "linked")).Ino != stat(t, filepath.Join(second.target, "other")).Ino {
		t.Error("the hard link is lost")
	}
}

// TestMappedWrites: a file that a process has mapped is copied again after each write to it.
func TestMappedWrites(t *testing.T) {
	first, second := newJob(t), newJob(t)
	second.From, second.source = first.From, first.source
	path := filepath.Join(first.source, "mapped")
	write(t, path, strings.Repeat("a", 4096))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = file.Close() }()
	mapped, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer func() { _ = unix.Munmap(mapped) }()
	mapped[0] = 'b'
	first.stageAll(t)
	mapped[0] = 'c' // the page was written to before, and may be dirty
	result := first.finish(t)
	if got := read(t, filepath.Join(first.target, "mapped")); got[0] != 'c' {
		t.Errorf("a staged file is used after a write: the copy begins with %c", got[0])
	}
	mapped[0] = 'd'
	second.Previous = &treecopy.Tree{Root: first.to, Index: result.Index}
	second.finish(t)
	if got := read(t, filepath.Join(second.target, "mapped")); got[0] != 'd' {
		t.Errorf("the earlier copy is used after a write: it begins with %c", got[0])
	}
}

// TestJustChanged: a file whose last change is not past yet is neither staged nor in the index.
func TestJustChanged(t *testing.T) {
	j := newJob(t)
	write(t, filepath.Join(j.source, "file"), "content")
	if result := j.finish(t); len(result.Index) != 0 {
		t.Errorf("the index has a file that has just changed: %v", result.Index)
	}
}

// TestLimits: what cannot be kept is refused.
func TestLimits(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		j := newJob(t)
		j.MaxBytes = 1 << 20
		write(t, filepath.Join(j.source, "one"), strings.Repeat("x", 1<<19))
		must(t, os.Link(filepath.Join(j.source, "one"), filepath.Join(j.source, "same")))
		j.finish(t)
		j = newJob(t)
		j.MaxBytes = 1 << 20
		for i := range 3 {
			write(t, filepath.Join(j.source, fmt.Sprint(i)), strings.Repeat("x", 1<<19))
		}
		_, staged := j.Stage(t.Context())
		_, finished := j.Compare(t.Context(), j.to, time.Now())
		for _, err := range []error{staged, finished} {
			if !errors.Is(err, engine.ErrSnapshotTooLarge) {
				t.Errorf("%v", err)
			}
		}
	})
	for name, entry := range map[string]string{"depth": "n", "path": strings.Repeat("n", 200)} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			at, err := unix.Open(j.source, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			for range 1100 {
				must(t, unix.Mkdirat(at, entry, 0o755))
				next, err := unix.Openat(at, entry, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				must(t, errors.Join(err, unix.Close(at)))
				at = next
			}
			must(t, unix.Close(at))
			if _, err := j.Stage(t.Context()); err != nil {
				t.Errorf("Stage: %v", err)
			}
			if _, err := j.Compare(t.Context(), j.to, time.Now()); !errors.Is(err, engine.ErrInvalid) || len(err.Error()) > 1000 {
				t.Errorf("Compare: %v", err)
			}
		})
	}
}

// TestHostileChanges: whatever a process puts in the place of files and directories while they are
// copied, nothing from outside of the directory gets into the copy, and nothing waits.
func TestHostileChanges(t *testing.T) {
	j := newJob(t)
	outside := t.TempDir()
	const secret = "from outside"
	write(t, filepath.Join(outside, "file"), secret)
	directory, file := filepath.Join(j.source, "directory"), filepath.Join(j.source, "file")
	replace := func(path string, next ...func(string) error) {
		for _, make := range next {
			_ = os.RemoveAll(path)
			_ = make(path)
		}
	}
	old, link := filepath.Join(j.source, "old"), filepath.Join(j.source, "old-link")
	for i := range 20 {
		write(t, filepath.Join(old, fmt.Sprint(i)), "inside")
		write(t, filepath.Join(outside, fmt.Sprint(i)), secret)
	}
	must(t, os.Symlink(outside, link))
	j.stageAll(t) // their last change is past from here on
	stop := make(chan struct{})
	var hostile sync.WaitGroup
	until := func(change func()) {
		hostile.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					change()
				}
			}
		})
	}
	inside := func(path string) error {
		return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "file"), []byte("inside"), 0o644))
	}
	until(func() {
		replace(directory, inside, func(path string) error { return os.Symlink(outside, path) })
	})
	until(func() {
		replace(file, func(path string) error { return os.WriteFile(path, []byte("inside"), 0o644) },
			func(path string) error { return os.Symlink(filepath.Join(outside, "file"), path) },
			func(path string) error { return unix.Mkfifo(path, 0o600) })
	})
	until(func() {
		_ = unix.Renameat2(unix.AT_FDCWD, old, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
	})
	until(func() { // a file that shrinks and grows
		path := filepath.Join(j.source, "size")
		_ = os.WriteFile(path, bytes.Repeat([]byte("inside"), 100_000), 0o644)
		_ = os.Truncate(path, 0)
	})
	until(func() { // directories that move while they are read
		_ = inside(filepath.Join(j.source, "a"))
		_ = os.Rename(filepath.Join(j.source, "a"), filepath.Join(j.source, "b"))
		_ = os.RemoveAll(filepath.Join(j.source, "b"))
	})
	staged := 0
	for round := range 100 {
		next := newJob(t)
		next.From = j.From
		if _, err := next.Stage(t.Context()); err != nil {
			t.Fatalf("Stage: %v", err)
		}
		files, err := os.ReadDir(next.Staging.Name())
		must(t, err)
		staged += len(files)
		checkInside(t, next.Staging.Name(), secret)
		// Nothing may change then, and yet nothing bad comes of it.
		target := filepath.Join(t.TempDir(), fmt.Sprint(round))
		must(t, os.Mkdir(target, 0o755))
		to, err := os.Open(target)
		must(t, err)
		if result, err := next.Compare(t.Context(), to, time.Now()); err == nil {
			must(t, next.Complete(t.Context(), to, &result))
		}
		must(t, to.Close())
		checkInside(t, target, secret)
	}
	close(stop)
	hostile.Wait()
	if staged == 0 {
		t.Error("nothing was staged while the directory changed")
	}
	t.Logf("%d files were staged", staged)
}

// checkInside looks for the content of a file from outside.
func checkInside(t *testing.T, directory, secret string) {
	t.Helper()
	must(t, filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		must(t, err)
		if entry.Type().IsRegular() && strings.Contains(read(t, path), secret) {
			t.Errorf("%s has what lies outside", path)
		}
		return nil
	}))
}

// TestFileWithManyNames: a file that has as many names as a file system takes is copied, and
// counted for it.
func TestFileWithManyNames(t *testing.T) {
	const names = 33_000 // of at most 65000 on ext4, in two copies
	first := newJob(t)
	write(t, filepath.Join(first.source, "file"), strings.Repeat("x", 1<<20))
	for i := range names - 1 {
		must(t, os.Link(filepath.Join(first.source, "file"), filepath.Join(first.source, fmt.Sprint("name-", i))))
	}
	first.stageAll(t)
	result := first.finish(t)
	if files := regular(result.Index); files != 1 {
		t.Fatalf("the index has %d files", files)
	}
	again := func(maxBytes int64) (treecopy.Result, error) {
		j := newJob(t)
		j.From, j.MaxBytes = first.From, maxBytes
		j.Previous = &treecopy.Tree{Root: first.to, Index: result.Index}
		second, err := j.Compare(t.Context(), j.to, time.Now())
		if err == nil {
			err = j.Complete(t.Context(), j.to, &second)
		}
		return second, err
	}
	if second, err := again(0); err != nil || second.Files != names || second.Exclusive < 1<<20 {
		t.Errorf("the copy has %d names and adds %d bytes (%v), want %d names of a new file", second.Files, second.Exclusive, err, names)
	}
	if _, err := again(1 << 19); !errors.Is(err, engine.ErrSnapshotTooLarge) {
		t.Errorf("beyond the bound: %v", err)
	}
}

// TestEmptyFilesAreCounted: what has no blocks takes an inode.
func TestEmptyFilesAreCounted(t *testing.T) {
	j := newJob(t)
	j.MaxBytes = 16 << 10
	for i := range 100 {
		must(t, os.Symlink("somewhere", filepath.Join(j.source, fmt.Sprint(i))))
	}
	if _, err := j.Compare(t.Context(), j.to, time.Now()); !errors.Is(err, engine.ErrSnapshotTooLarge) {
		t.Errorf("a hundred links beyond the bound: %v", err)
	}
}
