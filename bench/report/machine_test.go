package report

import "testing"

func TestFileSystem(t *testing.T) {
	for directory, want := range map[string]string{"/proc": "proc", "/does/not/exist": "unknown"} {
		if got := fileSystem(directory); got != want {
			t.Errorf("%s is on %q, want %q", directory, got, want)
		}
	}
}
