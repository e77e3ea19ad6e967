package treediff_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images/unpack"
	"sandbox.internal/runtime/oci/internal/treediff"
	"sandbox.internal/runtime/oci/overlay"
	"sandbox.internal/test/random"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layer makes the directory of a layer.
func layer(t testing.TB) string {
	t.Helper()
	directory := t.TempDir()
	must(t, os.Chmod(directory, 0o755))
	must(t, os.Chtimes(directory, at, at))
	return directory
}

// at is when files of tests were changed.
var at = time.Unix(1_000_000_000, 123_456_789)

func write(t testing.TB, directory, name, content string) {
	t.Helper()
	path := filepath.Join(directory, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
	must(t, os.Chtimes(path, at, at))
}

func whiteout(t testing.TB, directory, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(filepath.Join(directory, name)), 0o755))
	must(t, unix.Mknod(filepath.Join(directory, name), unix.S_IFCHR, 0))
}

func opaque(t testing.TB, directory, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(directory, name), 0o755))
	must(t, unix.Setxattr(filepath.Join(directory, name), "trusted.overlay.opaque", []byte("y"), 0))
}

func compare(t testing.TB, states treediff.States) (lines []string) {
	t.Helper()
	must(t, treediff.Compare(t.Context(), states, func(c engine.FileChange) error {
		lines = append(lines, fmt.Sprintf("%s %s %s %d", c.Kind, c.Path, c.Type, c.Size))
		return nil
	}))
	return lines
}

func want(t testing.TB, got []string, lines ...string) {
	t.Helper()
	if !slices.Equal(got, lines) {
		t.Errorf("the comparison has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

// TestCompare: every kind of change is found, by what overlayfs shows of the layers.
func TestCompare(t *testing.T) {
	image, first, second := layer(t), layer(t), layer(t)
	write(t, image, "kept", "same")
	write(t, image, "changed", "before")
	write(t, image, "gone/deep/file", "removed with its folder")
	write(t, image, "hidden/old", "behind an opaque folder")
	write(t, image, "hidden/stays", "is written again")
	write(t, image, "folder/file", "becomes a folder")
	write(t, image, "touched", "12345")
	write(t, image, "sneaky", "12345")
	must(t, os.Symlink("kept", filepath.Join(image, "link")))

	write(t, first, "changed", "after, longer")
	whiteout(t, first, "gone")
	opaque(t, first, "hidden")
	write(t, first, "hidden/new", "")
	write(t, first, "hidden/stays", "is written again")
	write(t, first, "folder/file/below", "x")
	write(t, first, "touched", "12345")
	must(t, os.Chtimes(filepath.Join(first, "touched"), at, at.Add(time.Second)))
	write(t, first, "sneaky", "54321")
	write(t, first, "kept", "same")
	must(t, unix.Mkfifo(filepath.Join(first, "fifo"), 0o600))
	must(t, os.Symlink("/etc/shadow", filepath.Join(first, "link2")))
	whiteout(t, first, "never")

	want(t, compare(t, treediff.States{From: []string{image}, To: []string{image, first}}),
		"modified /changed file 13", "added /fifo other 0", "modified /folder/file directory 0", "added /folder/file/below file 1",
		"removed /gone directory 0", "added /hidden/new file 0", "removed /hidden/old file 23", "added /link2 symlink 11",
		"modified /sneaky file 5", "modified /touched file 5")

	write(t, second, "gone/again", "1")
	whiteout(t, second, "fifo")
	must(t, os.Link(filepath.Join(first, "sneaky"), filepath.Join(second, "sneaky")))
	must(t, os.Mkdir(filepath.Join(second, "hidden"), 0o700))
	want(t, compare(t, treediff.States{From: []string{image, first}, To: []string{image, first, second}}),
		"removed /fifo other 0", "added /gone directory 0", "added /gone/again file 1", "modified /hidden directory 0")
	want(t, compare(t, treediff.States{From: []string{image, first}, To: []string{image, first}}))
}

// TestHostile: nothing is followed, and what an archive cannot have is refused.
func TestHostile(t *testing.T) {
	image, tree := layer(t), layer(t)
	outside := t.TempDir()
	write(t, outside, "secret", "of the host")
	write(t, image, "dir/file", "x")
	must(t, os.Symlink(outside, filepath.Join(tree, "dir")))
	states := treediff.States{From: []string{image}, To: []string{image, tree}}
	want(t, compare(t, states), fmt.Sprintf("modified /dir symlink %d", len(outside)))
	var archive bytes.Buffer
	must(t, treediff.WriteLayer(t.Context(), states, &archive))
	if bytes.Contains(archive.Bytes(), []byte("of the host")) {
		t.Error("the archive has a file that a symbolic link leads to")
	}

	write(t, tree, "odd\n\xff\x1b[31m", "x")
	must(t, treediff.WriteLayer(t.Context(), states, io.Discard))
	write(t, tree, "a/.wh.file", "x")
	if err := treediff.WriteLayer(t.Context(), states, io.Discard); !errors.Is(err, engine.ErrImage) {
		t.Errorf("a name that is a whiteout in an archive: %v", err)
	}
	must(t, os.Remove(filepath.Join(tree, "a/.wh.file")))
	must(t, os.Truncate(filepath.Join(image, "dir/file"), 0))
	write(t, tree, "large", "")
	must(t, os.Truncate(filepath.Join(tree, "large"), 1<<40))
	if err := treediff.WriteLayer(t.Context(), states, io.Discard); !errors.Is(err, engine.ErrSnapshotTooLarge) {
		t.Errorf("a sparse file of a tebibyte: %v", err)
	}
	must(t, os.Remove(filepath.Join(tree, "large")))
	must(t, unix.Setxattr(filepath.Join(tree, "a"), "trusted.overlay.redirect", []byte("/dir"), 0))
	if err := treediff.Compare(t.Context(), states, func(engine.FileChange) error { return nil }); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a directory that is redirected: %v", err)
	}
}

// TestStops: an error of the visit ends a comparison.
func TestStops(t *testing.T) {
	image, tree := layer(t), layer(t)
	for i := range 100 {
		write(t, tree, fmt.Sprintf("file%d", i), "x")
	}
	enough, visits := errors.New("enough"), 0
	err := treediff.Compare(t.Context(), treediff.States{From: []string{image}, To: []string{image, tree}}, func(engine.FileChange) error {
		if visits++; visits == 7 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || visits != 7 {
		t.Errorf("%d visits, %v", visits, err)
	}
}

// TestArchive: the entries have owners, modes, times, attributes and links, and are the same bytes
// each time.
func TestArchive(t *testing.T) {
	image, tree := layer(t), layer(t)
	write(t, image, "etc/conf", "x")
	must(t, os.Chmod(filepath.Join(image, "etc"), 0o750))
	must(t, os.Chtimes(filepath.Join(image, "etc"), at, at))
	write(t, tree, "etc/a", "content")
	must(t, os.Chmod(filepath.Join(tree, "etc"), 0o750))
	must(t, os.Chtimes(filepath.Join(tree, "etc"), at, at))
	must(t, os.Link(filepath.Join(tree, "etc/a"), filepath.Join(tree, "etc/b")))
	must(t, os.Chown(filepath.Join(tree, "etc/a"), 7, 8))
	must(t, os.Chmod(filepath.Join(tree, "etc/a"), 0o640|os.ModeSetgid))
	must(t, unix.Setxattr(filepath.Join(tree, "etc/a"), "user.test", []byte("value"), 0))
	whiteout(t, tree, "etc/conf")
	must(t, os.Chtimes(filepath.Join(tree, "etc"), at, at))
	// Of a directory that is written for the files in it alone.
	must(t, unix.Setxattr(filepath.Join(image, "etc"), "user.test", []byte("directory"), 0))
	must(t, unix.Setxattr(filepath.Join(tree, "etc"), "user.test", []byte("directory"), 0))
	states := treediff.States{From: []string{image}, To: []string{image, tree}}
	var first, second bytes.Buffer
	must(t, treediff.WriteLayer(t.Context(), states, &first))
	must(t, treediff.WriteLayer(t.Context(), states, &second))
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same files differ")
	}
	var got []string
	for entries := tar.NewReader(&first); ; {
		h, err := entries.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		content, err := io.ReadAll(entries)
		must(t, err)
		got = append(got, fmt.Sprintf("%c %s %o %d:%d %q %q %q", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, content, h.Linkname, h.PAXRecords["SCHILY.xattr.user.test"]))
		if h.Name == "etc/a" && !h.ModTime.Equal(at) {
			t.Errorf("the time of the file is %v", h.ModTime)
		}
	}
	want(t, got, `5 ./ 755 0:0 "" "" ""`, `5 etc/ 750 0:0 "" "" "directory"`, `0 etc/a 2640 7:8 "content" "" "value"`, `1 etc/b 2640 7:8 "" "etc/a" ""`, `0 etc/.wh.conf 600 0:0 "" "" ""`)
}

// shown is what a mount shows of a file.
type shown struct {
	info    [6]int64 // mode, owners, device, size, time
	content string
	inode   uint64
}

// shownBy mounts the layers and returns what there is, by paths.
func shownBy(t testing.TB, layers []string) map[string]shown {
	t.Helper()
	target := t.TempDir()
	must(t, overlay.Overlay{Lower: append([]string{t.TempDir()}, layers...)}.Mount(target))
	defer func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) }()
	files := map[string]shown{}
	must(t, filepath.WalkDir(target, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var info unix.Stat_t
		if err := unix.Lstat(path, &info); errors.Is(err, unix.ENOENT) {
			return nil // the kernel lists whiteouts of directories that one layer alone has
		} else if err != nil {
			return err
		}
		s := shown{info: [6]int64{int64(info.Mode), int64(info.Uid), int64(info.Gid), int64(info.Rdev), info.Size, info.Mtim.Nano()}, inode: info.Ino}
		switch info.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			s.info[4], s.info[5] = 0, 0
		case unix.S_IFREG:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s.content = string(content)
		case unix.S_IFLNK:
			s.content, err = os.Readlink(path)
		}
		files["/"+strings.TrimPrefix(strings.TrimPrefix(path, target), "/")] = s
		return err
	}))
	return files
}

// compareShown is Compare by what mounts show.
func compareShown(before, after map[string]shown) (lines []string) {
	plain := func(s shown) shown { s.inode = 0; return s }
	isDirectory := func(s shown) bool { return s.info[0]&unix.S_IFMT == unix.S_IFDIR }
	line := func(kind, path string, s shown) {
		name := map[int64]string{unix.S_IFDIR: "directory", unix.S_IFREG: "file", unix.S_IFLNK: "symlink"}[s.info[0]&unix.S_IFMT]
		if name == "" {
			name = "other"
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %d", kind, path, name, s.info[4]))
	}
	for path, now := range after {
		if was, ok := before[path]; !ok {
			line("added", path, now)
		} else if !reflect.DeepEqual(plain(was), plain(now)) {
			line("modified", path, now)
		}
	}
	for path, was := range before {
		parent, there := after[filepath.Dir(path)]
		if _, ok := after[path]; !ok && there && isDirectory(parent) {
			line("removed", path, was)
		}
	}
	return lines
}

// scribble makes a random layer. Names are few, so that layers hide one another's.
func scribble(t testing.TB, r *rand.Rand, directory string) {
	t.Helper()
	var made []string
	var fill func(directory string, depth int)
	fill = func(directory string, depth int) {
		for _, name := range []string{"a", "a-", "b", "c", "d"} {
			path := filepath.Join(directory, name)
			switch r.IntN(11) {
			case 0, 1:
				must(t, os.WriteFile(path, []byte{byte('0' + r.IntN(3))}, 0o644|fs.FileMode(r.IntN(2))))
				must(t, os.Chtimes(path, at, at.Add(time.Duration(r.IntN(2))*time.Second)))
				made = append(made, path)
			case 2, 3, 4:
				if depth == 3 {
					continue
				}
				must(t, os.Mkdir(path, 0o755))
				if r.IntN(4) == 0 {
					must(t, unix.Setxattr(path, "trusted.overlay.opaque", []byte("y"), 0))
				}
				fill(path, depth+1)
			case 5:
				must(t, unix.Mknod(path, unix.S_IFCHR, 0))
			case 6:
				must(t, os.Symlink([]string{"a", "/", "../b"}[r.IntN(3)], path))
				must(t, os.Lchown(path, r.IntN(2), 0))
				must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: 1}, {Sec: 1}}, unix.AT_SYMLINK_NOFOLLOW))
			case 7:
				if len(made) > 0 {
					must(t, os.Link(made[r.IntN(len(made))], path))
				}
			case 8:
				must(t, unix.Mkfifo(path, 0o600))
				must(t, os.Chtimes(path, at, at))
			}
		}
	}
	fill(directory, 0)
}

// TestRandomLayers: of random layers the comparison finds what mounts show, and an archive unpacked
// on the image shows what the layers show.
func TestRandomLayers(t *testing.T) {
	r := random.New(t)
	for range 20 {
		chain := []string{layer(t), layer(t), layer(t), layer(t)}
		for _, one := range chain {
			scribble(t, r, one)
		}
		shared := r.IntN(len(chain))
		base := chain[:shared]
		from, to := slices.Clone(chain[:shared+r.IntN(2)]), chain
		if r.IntN(2) == 0 {
			other := layer(t)
			scribble(t, r, other)
			from = append(slices.Clone(base), other)
		}
		if len(from) == 0 {
			from = []string{layer(t)}
		}
		states := treediff.States{From: from, To: to}
		before, after := shownBy(t, from), shownBy(t, to)
		got, wanted := compare(t, states), compareShown(before, after)
		slices.Sort(got)
		slices.Sort(wanted)
		want(t, got, wanted...)

		var archive bytes.Buffer
		must(t, treediff.WriteLayer(t.Context(), states, &archive))
		unpacked := layer(t)
		_, err := unpack.Layer(t.Context(), unpacked, &archive, &unpack.Limits{Bytes: 1 << 30, Entries: 1 << 20}, nil)
		must(t, err)
		exported := append(slices.Clone(from), unpacked)
		want(t, compareShown(after, shownBy(t, exported)))
		want(t, compare(t, treediff.States{From: to, To: exported}))
		if t.Failed() {
			return
		}
	}
}
