package deploy_test

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sandbox.internal/test/program"
)

// TestImagesForEveryUser: whatever mask scripts/images.sh is called with, every user of a sandbox
// may use what its images have.
func TestImagesForEveryUser(t *testing.T) {
	const script = "../scripts/images.sh"
	_, err := os.Stat(script) // an input of this test
	if err := errors.Join(err, program.UseImages("sandbox/execd:dev sandbox/egress:dev")); err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	command := exec.CommandContext(t.Context(), "sh", "-c", `umask 077 && exec "$0" --archives execd egress`, script)
	command.Env = append(os.Environ(), "SANDBOX_CACHE="+cache)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, image := range []string{"execd", "egress"} {
		archive, err := os.Open(filepath.Join(cache, "archives", image+".tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = archive.Close() }()
		entries := 0
		for outer := tar.NewReader(archive); ; {
			header, err := outer.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Base(header.Name) != "layer.tar" {
				continue
			}
			for layer := tar.NewReader(outer); ; entries++ {
				header, err := layer.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if header.Mode&0o755 != 0o755 {
					t.Errorf("%s: %s has the mode %o", image, header.Name, header.Mode)
				}
			}
		}
		if entries < 4 {
			t.Errorf("%s has %d entries", image, entries)
		}
	}
}
