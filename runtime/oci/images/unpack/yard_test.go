package unpack_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/images/unpack"
)

const (
	testBytes   = 8 << 20
	testEntries = 300
)

func limits() *unpack.Limits { return &unpack.Limits{Bytes: testBytes, Entries: testEntries} }

// yard is a directory for a layer, beside a directory that no layer may change.
type yard struct {
	layer, outside string
	before         []string
}

func newYard(t testing.TB) yard {
	t.Helper()
	directory := t.TempDir()
	y := yard{layer: filepath.Join(directory, "layer"), outside: filepath.Join(directory, "outside")}
	for _, made := range []string{y.layer, y.outside} {
		if err := os.Mkdir(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(y.outside, "file"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	y.before = describe(t, directory, y.layer)
	return y
}

func (y yard) check(t testing.TB) {
	t.Helper()
	if after := describe(t, filepath.Dir(y.layer), y.layer); !slices.Equal(after, y.before) {
		t.Errorf("outside of the layer was %q and is %q", y.before, after)
	}
}

// describe lists what is in a directory, with everything about it, leaving out one directory.
func describe(t testing.TB, directory, but string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(directory, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == but {
			return fs.SkipDir
		}
		lines = append(lines, path+" "+line(t, path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// line describes one file: its type and mode, owner, links, time, content and attributes. Times of
// directories are left out: their entries change them.
func line(t testing.TB, path string) string {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%o %d:%d", stat.Mode, stat.Uid, stat.Gid)
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(" links=%d %d.%d %q", stat.Nlink, stat.Mtim.Sec, stat.Mtim.Nsec, content)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		text += " -> " + target
	case unix.S_IFCHR, unix.S_IFBLK:
		text += fmt.Sprintf(" device %d", stat.Rdev)
	}
	for _, name := range attributes(t, path) {
		value := make([]byte, 256)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(" %s=%q", name, value[:n])
	}
	return text
}

func attributes(t testing.TB, path string) []string {
	t.Helper()
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 })
}

func unpackInto(t testing.TB, y yard, archive []byte) (unpack.Result, error) {
	t.Helper()
	return unpack.Layer(t.Context(), y.layer, bytes.NewReader(archive), limits(), nil)
}
