package clients_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// e2bFolder returns a folder with the programs of the folder e2b and the packages that they use.
func e2bFolder(t *testing.T) string {
	t.Helper()
	packages, folder := lives.Script(t, "node.sh", "test/e2e/clients/e2b"), lives.CopyOf(t, "e2b")
	if err := os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(folder, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return folder
}

// e2bService returns a service for clients of E2B, with the hosts of its sandboxes, and the
// variables of these clients.
func e2bService(t *testing.T) (s *service, byURL, byHosts []string) {
	t.Helper()
	hosts := lives.NewHosts(t, "sandbox.test")
	s = startWithPython(t, lives.Plan{
		Server:   fmt.Sprintf("compatibility = [\"e2b\", \"opensandbox\"]\ndefault_image = %q", pythonImage),
		Settings: fmt.Sprintf("[e2b]\ndomain = %q\n", hosts.Domain),
	})
	hosts.Serve(t, s.URL)
	common := []string{"E2B_API_KEY=" + lives.AdminKey, "E2B_API_URL=" + s.URL}
	byURL = append(common[:len(common):len(common)], "E2B_SANDBOX_URL="+s.URL)
	byHosts = append(common[:len(common):len(common)], "E2B_DOMAIN="+hosts.Domain, "NODE_EXTRA_CA_CERTS="+hosts.CA,
		"NODE_OPTIONS=--import=./resolve.mjs")
	return s, byURL, byHosts
}

// TestE2BClients takes sandboxes through their lives with the JavaScript clients of E2B as npm has
// them.
func TestE2BClients(t *testing.T) {
	t.Parallel()
	_, byURL, byHosts := e2bService(t)
	for name, environment := range map[string][]string{"e2b-2.51.0": byURL, "e2b-2.20.1": byURL, "e2b-2.6.4": byHosts} {
		t.Run(name, func(t *testing.T) {
			t.Log(lives.Tool(t, e2bFolder(t), environment, "node", "main.mjs", name))
		})
	}
}

// TestE2BHosts reaches the ports of sandboxes by their hosts.
func TestE2BHosts(t *testing.T) {
	t.Parallel()
	_, _, byHosts := e2bService(t)
	for _, name := range []string{"e2b-2.51.0", "e2b-2.6.4"} {
		t.Run(name, func(t *testing.T) {
			t.Log(lives.Tool(t, e2bFolder(t), byHosts, "node", "hosts.mjs", name))
		})
	}
}
