package clients_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestOpenSandboxClient takes sandboxes through their lives with the JavaScript SDK of OpenSandbox
// as npm has it.
func TestOpenSandboxClient(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Server: `compatibility = ["opensandbox"]`,
		Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	directory := conformance.CopyOf(t, "opensandbox")
	packages := conformance.NodePackages(t, "test/e2e/clients/opensandbox")
	if err := os.Symlink(packages, filepath.Join(directory, "node_modules")); err != nil {
		t.Fatal(err)
	}
	t.Log(conformance.Tool(t, directory, []string{
		"OPEN_SANDBOX_DOMAIN=" + strings.TrimPrefix(s.URL, "http://"), "OPEN_SANDBOX_API_KEY=" + conformance.AdminKey,
	}, "node", "main.mjs", busyboxImage))
}

// TestOpenSandboxIsOff: without the setting its clients have no key.
func TestOpenSandboxIsOff(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/v1/sandboxes", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("OPEN-SANDBOX-API-KEY", conformance.AdminKey)
	response, err := wait.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("%s, want 401", response.Status)
	}
}
