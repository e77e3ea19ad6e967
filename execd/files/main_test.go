package files_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sandbox.internal/execd/files"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newFiles returns a Files on a fresh working directory, with the home directory "home" in it.
func newFiles(t testing.TB) (*files.Files, string) {
	t.Helper()
	root := t.TempDir()
	mkdir(t, filepath.Join(root, "home"))
	return files.New(files.Options{Root: root, Home: filepath.Join(root, "home")}), root
}

func mkdir(t testing.TB, path string) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o755))
}

func write(t testing.TB, path, content string) {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func read(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return string(content)
}

func exists(t testing.TB, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks the kind of an error and that its message has all the parts.
func wantError(t testing.TB, err error, kind files.Kind, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	if got := files.KindOf(err); got != kind {
		t.Errorf("kind %d, want %d: %v", got, kind, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("message %q does not have %q", err, part)
		}
	}
}

// wantNoTemporary checks that no temporary file is left anywhere below root.
func wantNoTemporary(t testing.TB, root string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(entry.Name(), files.TempPrefix) {
			t.Errorf("left behind: %s", path)
		}
		return err
	}))
}

// mountTmpfs mounts an own file system of a size in bytes until the test ends. It needs root, like
// the daemon.
func mountTmpfs(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func paths(infos []files.Info, root string) []string {
	out := []string{}
	for _, info := range infos {
		out = append(out, strings.TrimPrefix(info.Path, root+"/"))
	}
	return out
}

func wantEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantList(t testing.TB, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
