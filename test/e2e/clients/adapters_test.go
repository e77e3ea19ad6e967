package clients_test

import (
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// TestDeepagents has an agent of deepagents work in a sandbox, through the adapter of
// clients/typescript, and compiles a program of a user against the types of both.
func TestDeepagents(t *testing.T) {
	t.Parallel()
	packages, folder := lives.NodePackages(t, "test/e2e/clients/adapters"), lives.CopyOf(t, "adapters")
	sdk := filepath.Join(buildTypeScript(t), "dist")
	for name, target := range map[string]string{"node_modules": packages, "sdk": sdk} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("types", func(t *testing.T) {
		lives.Tool(t, folder, nil, filepath.Join(lives.NodePackages(t, "clients/typescript"), ".bin", "tsc"), "--noEmit", "--strict", "--skipLibCheck",
			"--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022", "deepagents.ts")
	})
	t.Run("agent", func(t *testing.T) {
		s := startWithPython(t, lives.Plan{})
		environment := append(s.Variables(), "SANDBOX_SDK="+sdk, "SANDBOX_IMAGE="+pythonImage)
		t.Log(lives.Tool(t, folder, environment, "node", "deepagents.mjs"))
	})
}
