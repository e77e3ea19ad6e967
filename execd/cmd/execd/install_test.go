package main_test

import (
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 { // the second time over the first
		if out, err := program(t, "install", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// The copies do what the programs do, and nothing else is left behind.
	if out, err := wait.Command(t, filepath.Join(dir, "execd"), "sh", "-c", "echo works").CombinedOutput(); err != nil || string(out) != "works\n" {
		t.Errorf("the copy: %v: %s", err, out)
	}
	command := wait.Command(t, filepath.Join(dir, "execd-init"), "--host=127.0.0.1", "--port=0", "--graceful-shutdown-timeout=0s", "--log-level=3", "--", "/bin/sh", "-c", "echo works")
	if out, err := command.CombinedOutput(); err != nil || string(out) != "works\n" {
		t.Errorf("the copy of execd-init: %v: %s", err, out)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 2 {
		t.Errorf("installed are %q (%v)", files, err)
	}
	for _, args := range [][]string{{"install"}, {"install", dir, dir}} {
		if out, err := program(t, args...).CombinedOutput(); err == nil || !strings.Contains(string(out), "usage: execd install FOLDER") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
	if out, err := program(t, "install", filepath.Join(dir, "missing")).CombinedOutput(); err == nil || !strings.Contains(string(out), "missing") {
		t.Errorf("into a directory that is not there: %v: %s", err, out)
	}
}
