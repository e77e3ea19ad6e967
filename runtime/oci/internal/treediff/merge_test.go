package treediff_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/internal/treediff"
	"sandbox.internal/test/random"
)

// merge merges what the chain has above the image, which both are layers, lowest first.
func merge(t testing.TB, image, chain []string) string {
	t.Helper()
	merged := layer(t)
	to, err := os.Open(merged)
	must(t, err)
	defer func() { must(t, to.Close()) }()
	_, err = treediff.Merge(t.Context(), treediff.States{From: image, To: slices.Concat(image, chain)}, to, 0)
	must(t, err)
	return merged
}

// groupsOf returns the names of the files of a state that have several, in groups.
func groupsOf(files map[string]shown) []string {
	groups := map[uint64][]string{}
	for path, file := range files {
		groups[file.inode] = append(groups[file.inode], path)
	}
	var lines []string
	for _, names := range groups {
		slices.Sort(names)
		lines = append(lines, fmt.Sprint(names))
	}
	slices.Sort(lines)
	return lines
}

// TestMergeRandom: one layer that random layers were merged to shows what they do, also if it is
// merged with others again, and has no whiteout of what the image does not have.
func TestMergeRandom(t *testing.T) {
	r := random.New(t)
	for range 30 {
		image, chain := []string{layer(t), layer(t)}, []string{layer(t), layer(t), layer(t)}
		for _, one := range slices.Concat(image, chain) {
			scribble(t, r, one)
		}
		top := layer(t)
		scribble(t, r, top)
		first := merge(t, image, chain)
		second := merge(t, image, []string{first, top})
		for _, check := range []struct {
			merged string
			chain  []string
		}{{first, chain}, {second, append(slices.Clone(chain), top)}, {merge(t, image, append(slices.Clone(chain), top)), []string{second}}} {
			states := treediff.States{From: slices.Concat(image, check.chain), To: append(slices.Clone(image), check.merged)}
			before, after := shownBy(t, states.From), shownBy(t, states.To)
			want(t, compareShown(before, after))
			want(t, compareShown(after, before))
			want(t, groupsOf(after), groupsOf(before)...)
			want(t, compare(t, states))
			want(t, compare(t, treediff.States{From: states.To, To: states.From}))
		}
		checkMarks(t, second, shownBy(t, image))
		if t.Failed() {
			return
		}
	}
}

// checkMarks demands that each whiteout and each opaque directory of a layer hides something of the
// image.
func checkMarks(t *testing.T, directory string, image map[string]shown) {
	t.Helper()
	must(t, filepath.WalkDir(directory, func(path string, _ fs.DirEntry, err error) error {
		must(t, err)
		var info unix.Stat_t
		must(t, unix.Lstat(path, &info))
		below, _ := filepath.Rel(directory, path)
		hidden, ok := image["/"+below]
		switch {
		case info.Mode&unix.S_IFMT == unix.S_IFCHR && info.Rdev == 0 && !ok:
			t.Errorf("the whiteout %s hides nothing", below)
		case info.Mode&unix.S_IFMT == unix.S_IFDIR:
			_, err := unix.Getxattr(path, "trusted.overlay.opaque", nil)
			if err == nil && (!ok || hidden.info[0]&unix.S_IFMT != unix.S_IFDIR) {
				t.Errorf("the opaque directory %s hides nothing", below)
			}
		}
		return nil
	}))
}

// TestMergeAttributes: a merged directory has the attributes and times of the highest one, and
// files are the same as those of the layers.
func TestMergeAttributes(t *testing.T) {
	image, low, high := layer(t), layer(t), layer(t)
	write(t, image, "directory/image", "x")
	write(t, low, "directory/low", "x")
	write(t, high, "directory/high", "x")
	must(t, os.Symlink("nowhere", filepath.Join(low, "directory/link")))
	must(t, os.Chown(filepath.Join(low, "directory"), 1, 1))
	directory := filepath.Join(high, "directory")
	must(t, os.Chown(directory, 5, 6))
	must(t, unix.Chmod(directory, 0o2750))
	must(t, unix.Setxattr(directory, "user.test", []byte("high"), 0))
	must(t, os.Chtimes(directory, at, at))
	merged := merge(t, []string{image}, []string{low, high})
	var info unix.Stat_t
	must(t, unix.Stat(filepath.Join(merged, "directory"), &info))
	value := make([]byte, 10)
	n, err := unix.Getxattr(filepath.Join(merged, "directory"), "user.test", value)
	must(t, err)
	if info.Uid != 5 || info.Gid != 6 || info.Mode&0o7777 != 0o2750 || info.Mtim.Nano() != at.UnixNano() || string(value[:n]) != "high" {
		t.Errorf("the directory is %+v with the attribute %q", info, value[:n])
	}
	for name, from := range map[string]string{"low": low, "high": high, "link": low} {
		var was, is unix.Stat_t
		must(t, unix.Lstat(filepath.Join(from, "directory", name), &was))
		must(t, unix.Lstat(filepath.Join(merged, "directory", name), &is))
		if was.Ino != is.Ino {
			t.Errorf("the file %s was copied", name)
		}
	}
	if _, err := os.Lstat(filepath.Join(merged, "directory/image")); err == nil {
		t.Error("the merged layer has a file of the image")
	}
}

// TestMergeManyNames: files, also symbolic links, that can have no more names are copied.
func TestMergeManyNames(t *testing.T) {
	image, low, high := layer(t), layer(t), layer(t)
	write(t, low, "file", "content")
	must(t, os.Symlink("nowhere", filepath.Join(low, "symlink")))
	elsewhere := t.TempDir()
	const names = 33_000
	for i := range names {
		for _, name := range []string{"file", "symlink"} {
			must(t, os.Link(filepath.Join(low, name), filepath.Join(elsewhere, fmt.Sprint(name, i))))
		}
	}
	must(t, os.Link(filepath.Join(low, "file"), filepath.Join(low, "second")))
	merged := merge(t, []string{image}, []string{low, high})
	var was, is, second, link unix.Stat_t
	must(t, unix.Lstat(filepath.Join(low, "file"), &was))
	must(t, unix.Lstat(filepath.Join(merged, "file"), &is))
	must(t, unix.Lstat(filepath.Join(merged, "second"), &second))
	must(t, unix.Lstat(filepath.Join(merged, "symlink"), &link))
	if is.Ino == was.Ino || is.Ino != second.Ino || is.Nlink != 2 || link.Nlink != 1 || is.Mtim != was.Mtim {
		t.Errorf("the files are %+v and %+v, and the symbolic link %+v", is, second, link)
	}
	if content, err := os.ReadFile(filepath.Join(merged, "second")); err != nil || string(content) != "content" {
		t.Errorf("the copy has %q, %v", content, err)
	}
}
