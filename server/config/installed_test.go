package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandbox.internal/server/config"
)

// TestInstalledImages: the archives of an installation are the regular files NAME.tar of its
// directory, by name; without the directory there are none, and a directory that cannot be read is
// an error.
func TestInstalledImages(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "images")
	if found, err := config.ArchivesIn(directory); err != nil || len(found) != 0 {
		t.Errorf("no directory: %q, %v", found, err)
	}
	for _, path := range []string{"execd.tar", "egress.tar", "README", ".execd.tar.part", "directory.tar/x"} {
		path = filepath.Join(directory, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(directory, "egress.tar"), filepath.Join(directory, "execd.tar")}
	if found, err := config.ArchivesIn(directory); err != nil || !slices.Equal(found, want) {
		t.Errorf("got %q, %v, want %q", found, err, want)
	}
	if found, err := config.ArchivesIn(want[0]); err == nil {
		t.Errorf("a file instead of the directory: %q, want an error", found)
	}
}
