package main

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree is a working tree.
type tree struct {
	t         *testing.T
	directory string
}

func newTree(t *testing.T, files map[string]string) tree {
	t.Helper()
	made := tree{t, t.TempDir()}
	made.run(made.directory, "git", "init", "--quiet")
	for name, content := range files {
		made.write(name, content)
	}
	return made
}

// write writes a file of the working tree, with the time of now.
func (w tree) write(name, content string) {
	w.t.Helper()
	file := filepath.Join(w.directory, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w tree) run(directory string, args ...string) string {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), args[0], args[1:]...)
	command.Dir = directory
	command.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := command.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", args, err, out)
	}
	return string(out)
}

func (w tree) copyTo(directory string) {
	w.t.Helper()
	if err := snapshot(w.directory, directory); err != nil {
		w.t.Fatal(err)
	}
}

// contents returns what is in a directory: files with their content, links with their target, and
// directories.
func contents(t *testing.T, directory string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == directory {
			return err
		}
		name := strings.TrimPrefix(path, directory+"/")
		if entry.IsDir() {
			found[name] = "a directory"
			return nil
		}
		kind, content, err := read(path)
		found[name] = string(content)
		switch {
		case kind == fs.ModeSymlink:
			found[name] = "-> " + found[name]
		case kind != 0:
			found[name] += " (executable)"
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestSnapshot(t *testing.T) {
	w := newTree(t, map[string]string{
		".gitignore": "/ignored/\n", "ignored/file": "", "tracked": "1", "removed": "1", "directory/a": "1", "directory/b/c": "1", "script": "1", "other": "1",
	})
	w.run(w.directory, "git", "add", ".")
	for _, err := range []error{
		os.Remove(filepath.Join(w.directory, "removed")),
		os.Chmod(filepath.Join(w.directory, "script"), 0o700),
		os.Symlink("directory", filepath.Join(w.directory, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.write("untracked", "1")
	directory := filepath.Join(t.TempDir(), "copy")
	want := map[string]string{
		".gitignore": "/ignored/\n", "tracked": "1", "directory": "a directory", "directory/a": "1", "directory/b": "a directory", "directory/b/c": "1",
		"script": "1 (executable)", "other": "1", "link": "-> directory", "untracked": "1", "bin": "a directory",
	}
	check := func(when string) {
		t.Helper()
		w.copyTo(directory)
		if got := contents(t, directory); !maps.Equal(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", when, got, want)
		}
	}
	check("the first time")

	in := tree{t, directory}
	in.write("bin/program", "built")
	want["bin/program"] = "built"
	in.write("directory/a", "changed by a test")
	in.write("left/by/a/test", "")
	check("after a run")

	// A file becomes a directory, a directory a link, a link a file.
	for _, name := range []string{"other", "directory", "link"} {
		if err := os.RemoveAll(filepath.Join(w.directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.write("other/file", "2")
	w.write("link", "2")
	if err := os.Symlink("other", filepath.Join(w.directory, "directory")); err != nil {
		t.Fatal(err)
	}
	delete(want, "directory/a")
	delete(want, "directory/b")
	delete(want, "directory/b/c")
	want["other"], want["other/file"], want["link"], want["directory"] = "a directory", "2", "2", "-> other"
	check("after changes of what a name is")

	if err := os.RemoveAll(filepath.Join(w.directory, ".git")); err != nil {
		t.Fatal(err)
	}
	if err := snapshot(w.directory, directory); err == nil || !strings.Contains(err.Error(), "not a git repository") {
		t.Errorf("a directory that git does not know: %v", err)
	}
}

// TestResultsAreRepeated: the go command repeats a result in another clone with the same files, and
// in no other one.
func TestResultsAreRepeated(t *testing.T) {
	files := map[string]string{
		"go.mod": "module example.test\n\ngo 1.26\n", "data/file": "1",
		"check/check_test.go": `package check

import (
	"os"
	"testing"
)

func Test(t *testing.T) {
	if _, err := os.ReadFile("../data/file"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadDir("../data"); err != nil {
		t.Fatal(err)
	}
}
`,
	}
	first, second := newTree(t, files), newTree(t, files)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(second.directory, "data/file"), old, old); err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(t.TempDir(), "copy")
	test := func(when string, w tree, repeated bool, flags ...string) {
		t.Helper()
		w.copyTo(directory)
		out := w.run(directory, append(append([]string{"go", "test"}, flags...), "./check")...)
		if strings.Contains(out, "(cached)") != repeated {
			t.Errorf("%s: repeated is wanted to be %t:\n%s", when, repeated, out)
		}
	}
	test("the first time", first, false)
	test("the same again", first, true)
	test("another clone", second, true)
	second.write("data/file", "2")
	test("a file has changed", second, false)
	test("the first clone again", first, true)
	second.write("data/file", "1")
	second.write("data/other", "1")
	test("a file has come", second, false)
	// As scripts/suite.sh says on what machine the tests run.
	test("another machine", first, false, "-ldflags=-B 0x0123456789abcdef")
	test("the other machine again", first, true, "-ldflags=-B 0x0123456789abcdef")
	test("the first machine again", first, true)
}
