package log_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/internal/log"
)

func TestAsideIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var elsewhere bytes.Buffer
	out := log.Aside(path, &elsewhere)
	if _, err := os.Stat(path); err == nil {
		t.Error("there is a file before the first message")
	}
	line := strings.Repeat("x", 1<<10-1) + "\n"
	for range 3 << 10 { // 3 MiB
		if n, err := out.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + ".old"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() == 0 || info.Size() > 1<<20 || info.Mode() != 0o600 {
			t.Errorf("%s has %d bytes and mode %v", name, info.Size(), info.Mode())
		}
	}
	if elsewhere.Len() > 0 {
		t.Error("messages went elsewhere")
	}
}

// What the sandbox's processes have put at the path is not written to, and no message is lost.
func TestAsideDoesNotWriteToOtherFiles(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(path string) error{
		"symlink":   func(path string) error { return os.Symlink(victim, path) },
		"hard link": func(path string) error { return os.Link(victim, path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(dir, name)
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		var elsewhere bytes.Buffer
		out := log.Aside(path, &elsewhere)
		if _, err := out.Write([]byte("message\n")); err != nil || elsewhere.String() != "message\n" {
			t.Errorf("%s: %q, %v", name, elsewhere.String(), err)
		}
		if err := out.Close(); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || len(text) > 0 {
		t.Errorf("the other file has %q, %v", text, err)
	}
}
