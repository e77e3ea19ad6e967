package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandbox.internal/server/config"
)

// TestInstalledImages: the archives of an installation are the regular files NAME.tar of its
// folder, by name; without the folder there are none, and a folder that cannot be read is an error.
func TestInstalledImages(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "images")
	if found, err := config.ArchivesIn(folder); err != nil || len(found) != 0 {
		t.Errorf("no folder: %q, %v", found, err)
	}
	for _, path := range []string{"execd.tar", "egress.tar", "README", ".execd.tar.part", "folder.tar/x"} {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(folder, "egress.tar"), filepath.Join(folder, "execd.tar")}
	if found, err := config.ArchivesIn(folder); err != nil || !slices.Equal(found, want) {
		t.Errorf("got %q, %v, want %q", found, err, want)
	}
	if found, err := config.ArchivesIn(want[0]); err == nil {
		t.Errorf("a file instead of the folder: %q, want an error", found)
	}
}
