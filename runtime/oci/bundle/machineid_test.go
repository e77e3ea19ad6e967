package bundle_test

import (
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/runtime/oci/bundle"
)

// TestMachineID: only a file that has a machine id is one that containers would share.
func TestMachineID(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	for name, test := range map[string]struct {
		content string
		want    bool
	}{
		"id": {id + "\n", true}, "without an end of the line": {id, true}, "empty": {"", false}, "uninitialized": {"uninitialized\n", false},
		"short": {id[1:] + "\n", false}, "long": {id + "0\n", false}, "other text": {"g" + id[1:] + "\n", false},
	} {
		low, high := t.TempDir(), t.TempDir()
		if err := os.Mkdir(filepath.Join(low, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(low, "etc/machine-id"), []byte(test.content), 0o444); err != nil {
			t.Fatal(err)
		}
		if got, err := bundle.HasMachineID([]string{low, high}); err != nil || got != test.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, test.want)
		}
		// The next layer has a link out of the image in its place.
		if err := os.Mkdir(filepath.Join(high, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(low, "etc/machine-id"), filepath.Join(high, "etc/machine-id")); err != nil {
			t.Fatal(err)
		}
		if got, err := bundle.HasMachineID([]string{low, high}); err != nil || got {
			t.Errorf("%s, behind a link out of the image: %v, %v", name, got, err)
		}
	}
	if got, err := bundle.HasMachineID([]string{t.TempDir()}); err != nil || got {
		t.Errorf("without the file: %v, %v", got, err)
	}
}
