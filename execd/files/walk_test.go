package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

// makeSources makes a small tree with a loop, a dot file, a FIFO and an empty directory.
func makeSources(t testing.TB, root string) {
	t.Helper()
	for _, name := range []string{
		"a.txt", "b.py", ".hidden", "a-b/x.txt", "a/test_one.py", "a/two.py", "a/deep/er/test_two.py", "a/deep/n.txt",
	} {
		write(t, filepath.Join(root, name), name)
	}
	mkdir(t, filepath.Join(root, "empty"))
	must(t, os.Symlink("..", filepath.Join(root, "a/up")))
	must(t, unix.Mkfifo(filepath.Join(root, "a/fifo"), 0o600))
}

// search gathers what a search finds.
func search(ctx context.Context, f *files.Files, root, pattern string) ([]files.Info, error) {
	all := []files.Info{}
	err := f.Search(ctx, root, pattern, func(info files.Info) error { all = append(all, info); return nil })
	return all, err
}

// list gathers what a listing finds.
func list(ctx context.Context, f *files.Files, path string, depth int) ([]files.Info, error) {
	all := []files.Info{}
	err := f.List(ctx, path, depth, func(info files.Info) error { all = append(all, info); return nil })
	return all, err
}

func TestSearch(t *testing.T) {
	f, root := newFiles(t)
	root += "/src"
	makeSources(t, root)
	all := []string{
		".hidden", "a-b/x.txt", "a.txt", "a/deep/er/test_two.py", "a/deep/n.txt", "a/fifo", "a/test_one.py", "a/two.py", "a/up", "b.py",
	}
	python := []string{"a/deep/er/test_two.py", "a/test_one.py", "a/two.py", "b.py"}
	tests := []struct {
		pattern string
		want    []string
	}{
		{"", all},
		{"**", all},
		{"**/*", all},
		{"*", all}, // without a slash, the base name counts
		{"*.py", python},
		{"**/*.py", python},
		{"test_*.py", []string{"a/deep/er/test_two.py", "a/test_one.py"}},
		{"a/*.py", []string{"a/test_one.py", "a/two.py"}},
		{"a/**", []string{"a/deep/er/test_two.py", "a/deep/n.txt", "a/fifo", "a/test_one.py", "a/two.py", "a/up"}},
		{"**/deep/**/*.{py,txt}", []string{"a/deep/er/test_two.py", "a/deep/n.txt"}},
		{"?.txt", []string{"a-b/x.txt", "a.txt", "a/deep/n.txt"}},
		{"[!a-m].txt", []string{"a-b/x.txt", "a/deep/n.txt"}},
		{"empty", []string{}},
		{"nothing*", []string{}},
	}
	for _, test := range tests {
		t.Run(test.pattern, func(t *testing.T) {
			got, err := search(t.Context(), f, "src", test.pattern)
			must(t, err)
			wantList(t, "found", paths(got, root), test.want)
		})
	}
	t.Run("reports everything about what it finds", func(t *testing.T) {
		got, err := search(t.Context(), f, root, "n.txt")
		must(t, err)
		path := root + "/a/deep/n.txt"
		infos, err := f.Info([]string{path})
		must(t, err)
		if len(got) != 1 || got[0] != infos[path] {
			t.Errorf("got %+v, want %+v", got, infos[path])
		}
	})
	t.Run("from a link to a directory", func(t *testing.T) {
		must(t, os.Symlink(root, filepath.Dir(root)+"/linked"))
		got, err := search(t.Context(), f, "linked", "n.txt")
		must(t, err)
		wantList(t, "found", paths(got, filepath.Dir(root)), []string{"linked/a/deep/n.txt"})
	})
}

func TestSearchRefuses(t *testing.T) {
	f, root := newFiles(t)
	write(t, filepath.Join(root, "file"), "")
	tests := []struct {
		name, root, pattern string
		kind                files.Kind
		part                string
	}{
		{"missing root", "missing", "", files.KindNotFound, "/missing: no such file"},
		{"root is a file", "file", "", files.KindInvalid, "/file: is not a directory"},
		{"empty root", "", "", files.KindInvalid, "must not be empty"},
		{"open bracket", ".", "[a", files.KindInvalid, `pattern: "[a" is not a valid glob`},
		{"open brace", ".", "{a,b", files.KindInvalid, "pattern"},
		{"absolute pattern", ".", "/etc/*", files.KindInvalid, "pattern"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := search(t.Context(), f, test.root, test.pattern)
			wantError(t, err, test.kind, test.part)
		})
	}
}

func TestAWalkFromAboveDoesNotEnterProc(t *testing.T) {
	f, _ := newFiles(t)
	// A search goes the same way; this one does not read the whole machine.
	found, err := list(t.Context(), f, "/", 2)
	must(t, err)
	all := paths(found, "")
	wantEqual(t, "/proc itself is there", slices.Contains(all, "proc"), true)
	if i := slices.IndexFunc(all, func(path string) bool {
		return strings.HasPrefix(path, "proc/") || strings.HasPrefix(path, "sys/")
	}); i >= 0 {
		t.Errorf("found %s", all[i])
	}
	found, err = list(t.Context(), f, "/proc", 1)
	must(t, err)
	wantEqual(t, "asked for, it is there", slices.Contains(paths(found, ""), "proc/meminfo"), true)
}

func TestSearchOfManyFiles(t *testing.T) {
	f, _ := newFiles(t)
	disk := mountTmpfs(t, "size=256m")
	const directories, each = 100, 1000
	for i := range directories {
		dir := fmt.Sprintf("%s/%03d", disk, i)
		mkdir(t, dir)
		for j := range each {
			must(t, unix.Mknod(fmt.Sprintf("%s/file-%04d.txt", dir, j), unix.S_IFREG|0o644, 0))
		}
	}
	t.Run("all are found, in order", func(t *testing.T) {
		found, err := search(t.Context(), f, disk, "**/*.txt")
		must(t, err)
		wantEqual(t, "found", len(found), directories*each)
		if !slices.IsSortedFunc(found, func(a, b files.Info) int { return strings.Compare(a.Path, b.Path) }) {
			t.Error("not sorted")
		}
	})
	t.Run("a caller who left ends it", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := search(ctx, f, disk, ""); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}

func TestList(t *testing.T) {
	f, root := newFiles(t)
	root += "/src"
	makeSources(t, root)
	one := []string{".hidden", "a", "a-b", "a.txt", "b.py", "empty"}
	tests := []struct {
		depth int
		want  []string
	}{
		{0, one},
		{1, one},
		{2, []string{
			".hidden", "a", "a-b", "a-b/x.txt", "a.txt", "a/deep", "a/fifo", "a/test_one.py", "a/two.py", "a/up", "b.py", "empty",
		}},
		{9, []string{
			".hidden", "a", "a-b", "a-b/x.txt", "a.txt", "a/deep", "a/deep/er", "a/deep/er/test_two.py", "a/deep/n.txt",
			"a/fifo", "a/test_one.py", "a/two.py", "a/up", "b.py", "empty",
		}},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.depth), func(t *testing.T) {
			got, err := list(t.Context(), f, "src", test.depth)
			must(t, err)
			wantList(t, "entries", paths(got, root), test.want)
		})
	}
	t.Run("negative", func(t *testing.T) {
		_, err := list(t.Context(), f, "src", -1)
		wantError(t, err, files.KindInvalid, "depth", "-1")
	})
	t.Run("missing", func(t *testing.T) {
		_, err := list(t.Context(), f, "missing", 1)
		wantError(t, err, files.KindNotFound, "/missing")
	})
	t.Run("empty", func(t *testing.T) {
		got, err := list(t.Context(), f, "src/empty", 1)
		must(t, err)
		wantEqual(t, "entries", len(got), 0)
	})
}

func BenchmarkSearch(b *testing.B) {
	f, root := newFiles(b)
	for i := range 100_000 {
		if i%1000 == 0 {
			mkdir(b, fmt.Sprintf("%s/%03d", root, i/1000))
		}
		must(b, unix.Mknod(fmt.Sprintf("%s/%03d/file-%04d.txt", root, i/1000, i), unix.S_IFREG|0o644, 0))
	}
	for b.Loop() {
		if found, err := search(b.Context(), f, root, "**/*.txt"); err != nil || len(found) != 100_000 {
			b.Fatal(len(found), err)
		}
	}
}
