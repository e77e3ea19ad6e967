package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

func TestMove(t *testing.T) {
	f, root := newFiles(t)
	at := func(name string) string { return filepath.Join(root, name) }
	write(t, at("a"), "A")
	write(t, at("b"), "B")
	write(t, at("dir/deep/file"), "deep")
	must(t, os.Symlink("nowhere", at("broken")))

	must(t, f.Move(t.Context(), []files.MoveEntry{
		// A swap over a third name, and entries that see what the earlier ones did.
		{Src: "a", Dest: "t"}, {Src: "b", Dest: "a"}, {Src: "t", Dest: "b"},
		{Src: "dir", Dest: "home/moved"}, {Src: "home/moved/deep/file", Dest: "~/moved/file"},
		{Src: "broken", Dest: "home/moved/deep/broken"},
	}))
	wantEqual(t, "a", read(t, at("a")), "B")
	wantEqual(t, "b", read(t, at("b")), "A")
	wantEqual(t, "file", read(t, at("home/moved/file")), "deep")
	link, err := os.Readlink(at("home/moved/deep/broken"))
	must(t, err)
	wantEqual(t, "link", link, "nowhere")
	for _, name := range []string{"t", "dir", "broken", "home/moved/deep/file"} {
		wantEqual(t, name+" exists", exists(t, at(name)), false)
	}
}

func TestMoveChecksAllBeforeTheFirstChange(t *testing.T) {
	tests := []struct {
		name      string
		src, dest string
		kind      files.Kind
		part      string
	}{
		{"missing source", "missing", "x", files.KindNotFound, "/missing: no such file"},
		{"source that was moved away", "a", "x", files.KindNotFound, "/a: no such file"},
		{"target is a file", "b", "dir/file", files.KindConflict, "/dir/file: exists"},
		{"target is a directory", "b", "dir", files.KindConflict, "/dir: exists"},
		{"target is a broken link", "b", "broken", files.KindConflict, "/broken: exists"},
		{"target is the source", "b", "b", files.KindConflict, "/b: exists"},
		{"target was made by the entry before", "b", "moved", files.KindConflict, "/moved: exists"},
		{"missing directory", "b", "none/b", files.KindNotFound, "/none: no such file"},
		{"directory is a file", "b", "dir/file/b", files.KindInvalid, "/dir/file: is not a directory"},
		{"into itself", "dir", "dir/sub", files.KindInvalid, "/dir/sub: is inside"},
		{"empty source", "", "x", files.KindInvalid, "src: path: must not be empty"},
		{"empty target", "b", "", files.KindInvalid, "dest: path: must not be empty"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, root := newFiles(t)
			write(t, filepath.Join(root, "a"), "A")
			write(t, filepath.Join(root, "b"), "B")
			write(t, filepath.Join(root, "dir/file"), "")
			must(t, os.Symlink("nowhere", filepath.Join(root, "broken")))
			err := f.Move(t.Context(), []files.MoveEntry{{Src: "a", Dest: "moved"}, {Src: test.src, Dest: test.dest}})
			wantError(t, err, test.kind, "entry 2 of 2", test.part)
			wantEqual(t, "a exists", exists(t, filepath.Join(root, "a")), true)
			wantEqual(t, "b", read(t, filepath.Join(root, "b")), "B")
		})
	}
}

func TestMoveIntoItselfBehindALink(t *testing.T) {
	f, root := newFiles(t)
	mkdir(t, filepath.Join(root, "dir"))
	must(t, os.Symlink("dir", filepath.Join(root, "link")))
	err := f.Move(t.Context(), []files.MoveEntry{{Src: "dir", Dest: "link/sub"}})
	wantError(t, err, files.KindInvalid, "/link/sub: is inside")
}

// makeTree makes one of each kind of thing, with times and owners worth keeping.
func makeTree(t *testing.T, dir string) {
	t.Helper()
	write(t, dir+"/sub/file", "content")
	must(t, os.Chown(dir+"/sub/file", 4242, 4243))
	must(t, unix.Chmod(dir+"/sub/file", 0o4750))
	must(t, os.Symlink("../away", dir+"/sub/link"))
	must(t, os.Lchown(dir+"/sub/link", 4242, 4242))
	must(t, unix.Mkfifo(dir+"/fifo", 0o620))
	must(t, unix.Chmod(dir+"/fifo", 0o620))
	old := time.Date(2001, 2, 3, 4, 5, 6, 7000, time.UTC)
	must(t, os.Chtimes(dir+"/sub/file", old, old))
	must(t, os.Chmod(dir+"/sub", 0o500))
	must(t, os.Chown(dir+"/sub", 4242, 4242))
	must(t, os.Chtimes(dir+"/sub", old, old))
}

func TestMoveBetweenFileSystems(t *testing.T) {
	f, root := newFiles(t)
	disk := mountTmpfs(t, "")
	makeTree(t, root+"/tree")
	before, err := list(t.Context(), f, "tree", 9)
	must(t, err)

	must(t, f.Move(t.Context(), []files.MoveEntry{{Src: "tree", Dest: disk + "/tree"}}))

	after, err := list(t.Context(), f, disk+"/tree", 9)
	must(t, err)
	wantList(t, "entries", paths(after, disk), []string{"tree/fifo", "tree/sub", "tree/sub/file", "tree/sub/link"})
	for i, info := range after {
		was := before[i]
		wantEqual(t, info.Path+" type", info.Type, was.Type)
		wantEqual(t, info.Path+" mode", info.Mode, was.Mode)
		wantEqual(t, info.Path+" owner", info.Owner, was.Owner)
		wantEqual(t, info.Path+" group", info.Group, was.Group)
		wantEqual(t, info.Path+" modified", info.Modified, was.Modified)
	}
	wantEqual(t, "content", read(t, disk+"/tree/sub/file"), "content")
	link, err := os.Readlink(disk + "/tree/sub/link")
	must(t, err)
	wantEqual(t, "link", link, "../away")
	wantEqual(t, "source exists", exists(t, root+"/tree"), false)
	wantNoTemporary(t, disk)
}

// TestMoveBetweenFileSystemsKeepsHardLinks: of whatever can have several names, in whatever
// directories of the tree they are.
func TestMoveBetweenFileSystemsKeepsHardLinks(t *testing.T) {
	f, root := newFiles(t)
	disk := mountTmpfs(t, "")
	write(t, root+"/tree/a/one", "content")
	write(t, root+"/outside", "outside")
	mkdir(t, root+"/tree/b/c")
	must(t, os.Symlink("one", root+"/tree/a/link"))
	must(t, unix.Mkfifo(root+"/tree/a/fifo", 0o600))
	for _, name := range []string{"one", "link", "fifo"} {
		must(t, os.Link(root+"/tree/a/"+name, root+"/tree/b/c/"+name))
	}
	must(t, os.Link(root+"/tree/a/one", root+"/tree/third"))
	must(t, os.Link(root+"/outside", root+"/tree/inside"))

	must(t, f.Move(t.Context(), []files.MoveEntry{{Src: "tree", Dest: disk + "/tree"}}))

	for _, same := range [][]string{{"a/one", "b/c/one", "third"}, {"a/link", "b/c/link"}, {"a/fifo", "b/c/fifo"}, {"inside"}} {
		var first, other unix.Stat_t
		must(t, unix.Lstat(disk+"/tree/"+same[0], &first))
		wantEqual(t, same[0]+" links", int(first.Nlink), len(same))
		for _, name := range same[1:] {
			must(t, unix.Lstat(disk+"/tree/"+name, &other))
			wantEqual(t, name+" inode", other.Ino, first.Ino)
		}
	}
	wantEqual(t, "content", read(t, disk+"/tree/third"), "content")
	wantEqual(t, "outside", read(t, root+"/outside"), "outside")
	wantEqual(t, "source exists", exists(t, root+"/tree"), false)
	wantNoTemporary(t, disk)
}

// countingContext calls a function when it is asked for its error, with how often it was asked
// before.
type countingContext struct {
	context.Context
	asked int
	call  func(asked int)
}

func (c *countingContext) Err() error {
	c.call(c.asked)
	c.asked++
	return c.Context.Err()
}

// TestMoveOfADirectoryWithManyNames: they may be more than fit into memory. A move asks before each
// whether it is to go on.
func TestMoveOfADirectoryWithManyNames(t *testing.T) {
	f, _ := newFiles(t)
	disk, root := mountTmpfs(t, ""), mountTmpfs(t, "")
	const count = 3_000
	long := strings.Repeat("n", 240)
	mkdir(t, disk+"/tree/sub")
	for i := range count {
		must(t, unix.Mkfifo(fmt.Sprintf("%s/tree/%05d%s", disk, i, long), 0o600))
	}
	write(t, disk+"/tree/sub/file", "content")
	before := liveHeap()
	ctx := &countingContext{Context: t.Context(), call: func(asked int) {
		if asked == count/2 {
			if now := liveHeap(); now > before+256<<10 {
				t.Errorf("the move holds %d KiB", (now-before)>>10)
			}
		}
	}}
	must(t, f.Move(ctx, []files.MoveEntry{{Src: disk + "/tree", Dest: root + "/tree"}}))
	moved, err := os.ReadDir(root + "/tree")
	must(t, err)
	wantEqual(t, "moved", len(moved), count+1)
	wantEqual(t, "content", read(t, root+"/tree/sub/file"), "content")
	wantEqual(t, "asked", ctx.asked > count, true)
}

func TestMoveToAFullFileSystemChangesNothing(t *testing.T) {
	f, root := newFiles(t)
	disk := mountTmpfs(t, "size=1m")
	write(t, root+"/tree/small", "small")
	write(t, root+"/tree/zbig", string(make([]byte, 2<<20)))
	err := f.Move(t.Context(), []files.MoveEntry{{Src: "tree", Dest: disk + "/tree"}})
	wantError(t, err, files.KindNoSpace, "entry 1 of 1", disk+"/tree", "no space")
	wantEqual(t, "source exists", exists(t, root+"/tree/zbig"), true)
	wantEqual(t, "target exists", exists(t, disk+"/tree"), false)
	wantNoTemporary(t, disk)
}

func TestMoveOfWhatTheKernelMakesUp(t *testing.T) {
	f, root := newFiles(t)
	for _, src := range []string{"/proc/version", "/proc/sys/kernel", "/proc/kmsg", "/sys/devices/system/cpu/online"} {
		err := f.Move(t.Context(), []files.MoveEntry{{Src: src, Dest: root + "/moved"}})
		wantError(t, err, files.KindInvalid, src, "generated by the kernel")
		wantEqual(t, "target exists", exists(t, root+"/moved"), false)
	}
	wantNoTemporary(t, root)
}

func TestMoveBetweenFileSystemsEndsWithItsCaller(t *testing.T) {
	f, root := newFiles(t)
	disk := mountTmpfs(t, "")
	write(t, root+"/tree/file", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := f.Move(ctx, []files.MoveEntry{{Src: "tree", Dest: disk + "/tree"}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	wantEqual(t, "source exists", exists(t, root+"/tree/file"), true)
	wantEqual(t, "target exists", exists(t, disk+"/tree"), false)
	wantNoTemporary(t, disk)
}
