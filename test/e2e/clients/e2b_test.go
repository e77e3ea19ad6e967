package clients_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// e2bPackages are the clients of E2B, as npm has them and the folder e2b names them.
var e2bPackages = []string{"e2b-2.51.0", "e2b-2.20.1"}

// TestE2BClients takes sandboxes through their lives with the JavaScript clients of E2B as npm has
// them.
func TestE2BClients(t *testing.T) {
	t.Parallel()
	s := startWithPython(t, lives.Plan{Server: fmt.Sprintf("compatibility = [\"e2b\", \"opensandbox\"]\ndefault_image = %q", pythonImage)})
	packages := lives.Script(t, "node.sh", "test/e2e/clients/e2b")
	for _, name := range e2bPackages {
		t.Run(name, func(t *testing.T) {
			folder := lives.CopyOf(t, "e2b")
			if err := os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(folder, "node_modules")); err != nil {
				t.Fatal(err)
			}
			t.Log(lives.Tool(t, folder, []string{
				"E2B_API_KEY=" + lives.AdminKey, "E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL,
			}, "node", "main.mjs", name))
		})
	}
}
