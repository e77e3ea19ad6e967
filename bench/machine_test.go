package main

import "testing"

func TestFileSystem(t *testing.T) {
	for folder, want := range map[string]string{"/proc": "proc", "/does/not/exist": "unknown"} {
		if got := fileSystem(folder); got != want {
			t.Errorf("%s is on %q, want %q", folder, got, want)
		}
	}
}
