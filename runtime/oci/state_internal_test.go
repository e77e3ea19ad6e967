package oci

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestStateFiles: what runtimes keep of a container is found, a directory of its id or files with
// it in their names, and nothing of another one.
func TestStateFiles(t *testing.T) {
	directory := t.TempDir()
	first, second, third := strings.Repeat("a", 32), strings.Repeat("b", 32), strings.Repeat("c", 32)
	for _, name := range []string{
		first + "_sandbox:" + first + ".state", first + "_sandbox:" + first + ".lock", "runsc-" + first + ".sock",
		second + "_sandbox:" + second + ".state",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(directory, third), 0o700); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{first: 3, second: 1, third: 1, strings.Repeat("d", 32): 0} {
		found, err := stateFiles(directory, id)
		if err != nil || len(found) != want || slices.ContainsFunc(found, func(path string) bool { return !strings.Contains(path, id) }) {
			t.Errorf("of %s: %v, %v", id, found, err)
		}
	}
	if found, err := stateFiles(filepath.Join(directory, "missing"), first); err != nil || found != nil {
		t.Errorf("without a directory: %v, %v", found, err)
	}
}
