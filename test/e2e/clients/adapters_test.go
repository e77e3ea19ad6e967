package clients_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestDeepagents has an agent of deepagents work in a sandbox, through the adapter of
// clients/typescript, and compiles a program of a user against the types of both.
func TestDeepagents(t *testing.T) {
	t.Parallel()
	_, directory, sdk := adapterDirectory(t)
	t.Run("types", func(t *testing.T) { compileUserProgram(t, directory, "deepagents.ts") })
	t.Run("agent", func(t *testing.T) {
		s := startWithPython(t, conformance.Plan{})
		environment := append(s.Variables(), "SANDBOX_SDK="+sdk, "SANDBOX_IMAGE="+pythonImage)
		t.Log(conformance.Tool(t, directory, environment, "node", "deepagents.mjs"))
	})
}

// TestAISDK has agents of the AI SDK work in sandboxes, through the adapter of clients/typescript
// for its package harness, and compiles a program of a user against the types of both.
func TestAISDK(t *testing.T) {
	t.Parallel()
	packages, directory, sdk := adapterDirectory(t)
	t.Run("types", func(t *testing.T) { compileUserProgram(t, directory, "aisdk.ts") })
	t.Run("agents", func(t *testing.T) {
		s := startWithPython(t, conformance.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
		environment := append(s.Variables(), "SANDBOX_SDK="+sdk, "SANDBOX_IMAGE="+pythonImage)
		t.Log(conformance.Tool(t, directory, environment, conformance.Node22(t, packages), "aisdk.mjs"))
	})
}

// adapterDirectory returns a directory with the programs of the directory adapters, the packages
// that they use, and the directory of the compiled client, which is sdk in the directory.
func adapterDirectory(t *testing.T) (packages, directory, sdk string) {
	t.Helper()
	packages, directory = conformance.NodePackages(t, "test/e2e/clients/adapters"), conformance.CopyOf(t, "adapters")
	sdk = filepath.Join(buildTypeScript(t), "dist")
	for name, target := range map[string]string{"node_modules": packages, "sdk": sdk} {
		if err := os.Symlink(target, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	return packages, directory, sdk
}

// compileUserProgram checks the types of a program of a directory of [adapterDirectory].
func compileUserProgram(t *testing.T, directory, program string) {
	t.Helper()
	conformance.Tool(t, directory, nil, filepath.Join(conformance.NodePackages(t, "clients/typescript"), ".bin", "tsc"), "--noEmit", "--strict", "--skipLibCheck",
		"--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022", program)
}
