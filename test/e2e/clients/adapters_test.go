package clients_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

// TestDeepagents has an agent of deepagents work in a sandbox, through the adapter of
// clients/typescript, and compiles a program of a user against the types of both.
func TestDeepagents(t *testing.T) {
	t.Parallel()
	_, folder, sdk := adapterFolder(t)
	t.Run("types", func(t *testing.T) { compileUserProgram(t, folder, "deepagents.ts") })
	t.Run("agent", func(t *testing.T) {
		s := startWithPython(t, lives.Plan{})
		environment := append(s.Variables(), "SANDBOX_SDK="+sdk, "SANDBOX_IMAGE="+pythonImage)
		t.Log(lives.Tool(t, folder, environment, "node", "deepagents.mjs"))
	})
}

// TestAISDK has agents of the AI SDK work in sandboxes, through the adapter of clients/typescript
// for its package harness, and compiles a program of a user against the types of both.
func TestAISDK(t *testing.T) {
	t.Parallel()
	packages, folder, sdk := adapterFolder(t)
	t.Run("types", func(t *testing.T) { compileUserProgram(t, folder, "aisdk.ts") })
	t.Run("agents", func(t *testing.T) {
		s := startWithPython(t, lives.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
		environment := append(s.Variables(), "SANDBOX_SDK="+sdk, "SANDBOX_IMAGE="+pythonImage)
		t.Log(lives.Tool(t, folder, environment, lives.Node22(t, packages), "aisdk.mjs"))
	})
}

// adapterFolder returns a folder with the programs of the folder adapters, the packages that they
// use, and the directory of the compiled client, which is sdk in the folder.
func adapterFolder(t *testing.T) (packages, folder, sdk string) {
	t.Helper()
	packages, folder = lives.NodePackages(t, "test/e2e/clients/adapters"), lives.CopyOf(t, "adapters")
	sdk = filepath.Join(buildTypeScript(t), "dist")
	for name, target := range map[string]string{"node_modules": packages, "sdk": sdk} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	return packages, folder, sdk
}

// compileUserProgram checks the types of a program of a folder of [adapterFolder].
func compileUserProgram(t *testing.T, folder, program string) {
	t.Helper()
	lives.Tool(t, folder, nil, filepath.Join(lives.NodePackages(t, "clients/typescript"), ".bin", "tsc"), "--noEmit", "--strict", "--skipLibCheck",
		"--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022", program)
}
