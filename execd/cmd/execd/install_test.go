package main_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 { // the second time over the first
		if out, err := program(t, "install", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// The copy does what the program does, and leaves nothing else behind.
	if out, err := exec.Command(filepath.Join(dir, "execd"), "sh", "-c", "echo works").CombinedOutput(); err != nil || string(out) != "works\n" {
		t.Errorf("the copy: %v: %s", err, out)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 1 {
		t.Errorf("installed are %q (%v)", files, err)
	}
	for _, args := range [][]string{{"install"}, {"install", dir, dir}} {
		if out, err := program(t, args...).CombinedOutput(); err == nil || !strings.Contains(string(out), "usage: execd install FOLDER") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
	if out, err := program(t, "install", filepath.Join(dir, "missing")).CombinedOutput(); err == nil || !strings.Contains(string(out), "missing") {
		t.Errorf("into a folder that is not there: %v: %s", err, out)
	}
}
