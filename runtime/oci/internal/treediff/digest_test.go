package treediff_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/internal/treediff"
	"sandbox.internal/test/random"
)

// digest returns the digest of what the chain has above the image, with what is known of contents.
func digest(t testing.TB, known treediff.Hashes, image []string, chain ...string) string {
	t.Helper()
	if known == nil {
		known = treediff.Hashes{}
	}
	states := treediff.States{From: image, To: slices.Concat(image, chain)}
	got, _, err := treediff.Digest(t.Context(), states, "image", known)
	must(t, err)
	return got
}

// TestDigestRandom: the digest of what layers show is that of one layer which they were merged to,
// and two digests are the same exactly when mounts show the same files.
func TestDigestRandom(t *testing.T) {
	r := random.New(t)
	for range 20 {
		image := []string{layer(t), layer(t)}
		chain := []string{layer(t), layer(t)}
		for _, one := range slices.Concat(image, chain) {
			scribble(t, r, one)
		}
		separate(t, image[0])
		separate(t, image[1])
		known := treediff.Hashes{}
		first := digest(t, known, image, chain...)
		if got := digest(t, known, image, chain...); got != first {
			t.Errorf("with the hashes of the first digest, the second is %s, not %s", got, first)
		}
		if got := digest(t, nil, image, merge(t, image, chain)); got != first {
			t.Errorf("the merged layer has the digest %s, the layers %s", got, first)
		}
		upper := layer(t)
		scribble(t, r, upper)
		before, after := shownBy(t, slices.Concat(image, chain)), shownBy(t, slices.Concat(image, chain, []string{upper}))
		same := slices.Equal(described(before), described(after))
		if got := digest(t, known, image, chain[0], chain[1], upper); (got == first) != same {
			t.Errorf("the digests are the same: %v, and the files: %v", got == first, same)
		}
		if t.Failed() {
			return
		}
	}
}

// separate gives each name in a layer of an image a file of its own: a digest does not show that an
// image's hard link is broken.
func separate(t *testing.T, directory string) {
	t.Helper()
	must(t, filepath.WalkDir(directory, func(path string, _ fs.DirEntry, err error) error {
		must(t, err)
		var info unix.Stat_t
		must(t, unix.Lstat(path, &info))
		if info.Mode&unix.S_IFMT != unix.S_IFREG || info.Nlink < 2 {
			return nil
		}
		content, err := os.ReadFile(path)
		must(t, err)
		must(t, os.Remove(path))
		must(t, os.WriteFile(path, content, fs.FileMode(info.Mode&0o777)))
		return os.Chtimes(path, at, at)
	}))
}

// described returns what a digest covers of files.
func described(files map[string]shown) []string {
	lines := groupsOf(files)
	for path, file := range files {
		file.inode, file.info[5] = 0, 0 // the time
		lines = append(lines, fmt.Sprint(path, file))
	}
	slices.Sort(lines)
	return lines
}

// TestDigestCovers: each change of a file is another digest, and a time is none.
func TestDigestCovers(t *testing.T) {
	image := layer(t)
	for _, name := range []string{"file", "other", "directory/file", "linked"} {
		write(t, image, name, "12345")
	}
	must(t, os.Link(filepath.Join(image, "linked"), filepath.Join(image, "linked2")))
	must(t, os.Symlink("file", filepath.Join(image, "symlink")))
	// What a container has written again, and nothing is changed.
	same := func(change func(tree string)) string {
		tree := layer(t)
		for _, name := range []string{"file", "directory/file"} {
			write(t, tree, name, "12345")
		}
		must(t, os.Symlink("file", filepath.Join(tree, "symlink")))
		change(tree)
		return digest(t, nil, []string{image}, tree)
	}
	none := digest(t, nil, []string{image}, layer(t))
	in := func(tree, name string) string { return filepath.Join(tree, name) }
	for name, change := range map[string]func(tree string){
		"written again": func(string) {},
		"touched":       func(tree string) { must(t, os.Chtimes(in(tree, "file"), time.Now(), time.Now())) },
		"directory touched": func(tree string) {
			must(t, os.Chtimes(in(tree, "directory"), time.Now(), time.Now()))
		},
		"opaque": func(tree string) { opaque(t, tree, "directory") },
		"linked again": func(tree string) {
			write(t, tree, "linked", "12345")
			must(t, os.Link(in(tree, "linked"), in(tree, "linked2")))
		},
		"whiteout of nothing": func(tree string) { whiteout(t, tree, "none") },
	} {
		if got := same(change); got != none {
			t.Errorf("%s: the digest is another one", name)
		}
	}
	digests := map[string]string{"none": none}
	for name, change := range map[string]func(tree string){
		"content":   func(tree string) { write(t, tree, "file", "54321") },
		"zeros":     func(tree string) { write(t, tree, "file", "\x00\x00\x00\x00\x00") },
		"longer":    func(tree string) { must(t, os.Truncate(in(tree, "file"), 6)) },
		"mode":      func(tree string) { must(t, os.Chmod(in(tree, "file"), 0o600)) },
		"owner":     func(tree string) { must(t, os.Chown(in(tree, "file"), 1, 0)) },
		"group":     func(tree string) { must(t, os.Chown(in(tree, "file"), 0, 1)) },
		"attribute": func(tree string) { must(t, unix.Setxattr(in(tree, "file"), "user.test", []byte("1"), 0)) },
		"value":     func(tree string) { must(t, unix.Setxattr(in(tree, "file"), "user.test", []byte("2"), 0)) },
		"target": func(tree string) {
			must(t, os.Remove(in(tree, "symlink")))
			must(t, os.Symlink("other", in(tree, "symlink")))
		},
		"hard link": func(tree string) {
			must(t, os.Link(in(tree, "file"), in(tree, "other")))
		},
		"other hard link": func(tree string) {
			must(t, os.Remove(in(tree, "directory/file")))
			must(t, os.Link(in(tree, "file"), in(tree, "directory/file")))
		},
		"removed":           func(tree string) { whiteout(t, tree, "other") },
		"directory mode":    func(tree string) { must(t, os.Chmod(in(tree, "directory"), 0o700)) },
		"directory removed": func(tree string) { must(t, os.RemoveAll(in(tree, "directory"))); whiteout(t, tree, "directory") },
		"added":             func(tree string) { write(t, tree, "new", "") },
		"added directory":   func(tree string) { must(t, os.Mkdir(in(tree, "new"), 0o755)) },
		"fifo":              func(tree string) { must(t, unix.Mkfifo(in(tree, "new"), 0o644)) },
		"device":            func(tree string) { must(t, unix.Mknod(in(tree, "new"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3)))) },
		"other device":      func(tree string) { must(t, unix.Mknod(in(tree, "new"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5)))) },
		"renamed":           func(tree string) { write(t, tree, "new2", "") },
	} {
		got := same(change)
		for other, has := range digests {
			if has == got {
				t.Errorf("%s and %s have the same digest", name, other)
			}
		}
		digests[name] = got
	}
}

// TestDigestHoles: holes are not read, and make no difference.
func TestDigestHoles(t *testing.T) {
	image, holes, zeros := layer(t), layer(t), layer(t)
	content := make([]byte, 3<<20)
	content[1<<20+17], content[len(content)-1] = 1, 2
	write(t, zeros, "file", string(content))
	write(t, holes, "file", "")
	file, err := os.OpenFile(filepath.Join(holes, "file"), os.O_WRONLY, 0)
	must(t, err)
	for _, offset := range []int{1<<20 + 17, len(content) - 1} {
		_, err := file.WriteAt(content[offset:offset+1], int64(offset))
		must(t, err)
	}
	must(t, file.Close())
	if digest(t, nil, []string{image}, holes) != digest(t, nil, []string{image}, zeros) {
		t.Error("a file with holes has another digest than one with zeros")
	}
	must(t, os.Truncate(filepath.Join(holes, "file"), 1<<42))
	digest(t, nil, []string{image}, holes) // at once
}

// TestHashes: hashes come back as they were written, and none of a file that was cut off.
func TestHashes(t *testing.T) {
	image, tree := layer(t), layer(t)
	write(t, tree, "a", "1")
	write(t, tree, "b", "2")
	states := treediff.States{From: []string{image}, To: []string{image, tree}}
	want, used, err := treediff.Digest(t.Context(), states, "image", treediff.Hashes{})
	must(t, err)
	if len(used[tree]) != 2 || len(used[image]) != 0 {
		t.Errorf("used are %v", used)
	}
	var written bytes.Buffer
	must(t, used[tree].Write(&written, want))
	read := treediff.Hashes{}
	if digest, err := read.Read(bytes.NewReader(written.Bytes())); err != nil || digest != want || fmt.Sprint(read) != fmt.Sprint(used[tree]) {
		t.Errorf("read are %s and %v, %v", digest, read, err)
	}
	for n := range written.Len() {
		read := treediff.Hashes{}
		if digest, err := read.Read(bytes.NewReader(written.Bytes()[:n])); err == nil || digest != "" || len(read) > 0 {
			t.Fatalf("of %d bytes are read %q and %v, %v", n, digest, read, err)
		}
	}
	// What is known is not read.
	for content := range read {
		read[content] = treediff.Hash{1}
	}
	if got, _, err := treediff.Digest(t.Context(), states, "image", read); err != nil || got == want {
		t.Errorf("the digest of other hashes is %s, %v", got, err)
	}
}
