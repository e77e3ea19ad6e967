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
	t      *testing.T
	folder string
}

func newTree(t *testing.T, files map[string]string) tree {
	t.Helper()
	made := tree{t, t.TempDir()}
	made.run(made.folder, "git", "init", "--quiet")
	for name, content := range files {
		made.write(name, content)
	}
	return made
}

// write writes a file of the working tree, with the time of now.
func (w tree) write(name, content string) {
	w.t.Helper()
	file := filepath.Join(w.folder, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w tree) run(folder string, args ...string) string {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), args[0], args[1:]...)
	command.Dir = folder
	command.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	out, err := command.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", args, err, out)
	}
	return string(out)
}

func (w tree) copyTo(folder string) {
	w.t.Helper()
	if err := snapshot(w.folder, folder); err != nil {
		w.t.Fatal(err)
	}
}

// contents returns what is in a folder: files with their content, links with their target, and
// folders.
func contents(t *testing.T, folder string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name := strings.TrimPrefix(path, folder+"/")
		if entry.IsDir() {
			found[name] = "a folder"
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
		".gitignore": "/ignored/\n", "ignored/file": "", "tracked": "1", "removed": "1", "folder/a": "1", "folder/b/c": "1", "script": "1", "other": "1",
	})
	w.run(w.folder, "git", "add", ".")
	for _, err := range []error{
		os.Remove(filepath.Join(w.folder, "removed")),
		os.Chmod(filepath.Join(w.folder, "script"), 0o700),
		os.Symlink("folder", filepath.Join(w.folder, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.write("untracked", "1")
	folder := filepath.Join(t.TempDir(), "copy")
	want := map[string]string{
		".gitignore": "/ignored/\n", "tracked": "1", "folder": "a folder", "folder/a": "1", "folder/b": "a folder", "folder/b/c": "1",
		"script": "1 (executable)", "other": "1", "link": "-> folder", "untracked": "1", "bin": "a folder",
	}
	check := func(when string) {
		t.Helper()
		w.copyTo(folder)
		if got := contents(t, folder); !maps.Equal(got, want) {
			t.Errorf("%s:\n got %v\nwant %v", when, got, want)
		}
	}
	check("the first time")

	in := tree{t, folder}
	in.write("bin/program", "built")
	want["bin/program"] = "built"
	in.write("folder/a", "changed by a test")
	in.write("left/by/a/test", "")
	check("after a run")

	// A file becomes a folder, a folder a link, a link a file.
	for _, name := range []string{"other", "folder", "link"} {
		if err := os.RemoveAll(filepath.Join(w.folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.write("other/file", "2")
	w.write("link", "2")
	if err := os.Symlink("other", filepath.Join(w.folder, "folder")); err != nil {
		t.Fatal(err)
	}
	delete(want, "folder/a")
	delete(want, "folder/b")
	delete(want, "folder/b/c")
	want["other"], want["other/file"], want["link"], want["folder"] = "a folder", "2", "2", "-> other"
	check("after changes of what a name is")

	if err := os.RemoveAll(filepath.Join(w.folder, ".git")); err != nil {
		t.Fatal(err)
	}
	if err := snapshot(w.folder, folder); err == nil || !strings.Contains(err.Error(), "not a git repository") {
		t.Errorf("a folder that git does not know: %v", err)
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
	if err := os.Chtimes(filepath.Join(second.folder, "data/file"), old, old); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "copy")
	test := func(when string, w tree, repeated bool, flags ...string) {
		t.Helper()
		w.copyTo(folder)
		out := w.run(folder, append(append([]string{"go", "test"}, flags...), "./check")...)
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
