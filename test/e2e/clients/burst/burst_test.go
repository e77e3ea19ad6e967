// Package burst_test creates more sandboxes at once than a machine has processors for. The clients
// have deadlines for this, and the machine has to do nothing else: scripts/packages.sh has the
// package in a class of its own.
package burst_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		localengine.Remove()
		conformance.RemoveBuilt()
		os.Exit(code)
	}))
}

// TestE2BManyAtOnce creates a hundred sandboxes at once with an unmodified client of E2B. None may
// be refused: a create is answered within the 60 s after which the client ends its request.
func TestE2BManyAtOnce(t *testing.T) {
	const key = "e2b_0123456789abcdef0123456789abcdef"
	digest := sha256.Sum256([]byte(key))
	s := conformance.Start(t, localengine.New("crun").Backend(), conformance.Plan{
		Server: fmt.Sprintf("compatibility = [\"e2b\"]\ndefault_image = %q", localengine.BaseImage),
		Keys:   []config.Key{{Name: "agent", SHA256: hex.EncodeToString(digest[:]), Role: config.RoleUser}},
	})
	directory := conformance.CopyOf(t, "../e2b")
	packages := conformance.NodePackages(t, "test/e2e/clients/e2b")
	if err := os.Symlink(packages, filepath.Join(directory, "node_modules")); err != nil {
		t.Fatal(err)
	}
	environment := []string{"E2B_API_KEY=" + key, "E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL}
	t.Log(conformance.Tool(t, directory, environment, "node", "many.mjs", "e2b-2.51.0"))
}
