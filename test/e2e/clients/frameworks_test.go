package clients_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestE2BFrameworksOfNode22 uses sandboxes through frameworks above E2B's client that need a newer
// Node.js than this repository's other programs, as npm has them.
func TestE2BFrameworksOfNode22(t *testing.T) {
	t.Parallel()
	packages := conformance.NodePackages(t, "test/e2e/clients/frameworks")
	node := conformance.Node22(t, packages)
	s, byURL, byHosts := e2bService(t)
	environment := append(byURL[:len(byURL):len(byURL)], "MASTRA_API_URL="+s.URL, "OPENAI_AGENTS_DISABLE_TRACING=1", "NO_COLOR=1")
	for _, variable := range byHosts {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "NODE_EXTRA_CA_CERTS", "NODE_OPTIONS": // for the hosts of ports
			environment = append(environment, variable)
		case "E2B_DOMAIN":
			environment = append(environment, "MASTRA_DOMAIN="+value)
		}
	}
	for _, program := range []string{"mastra.mjs", "openai.mjs", "cli.mjs"} {
		t.Run(program, func(t *testing.T) {
			t.Log(conformance.Tool(t, frameworksDirectory(t, packages), environment, node, program))
		})
	}
}

// frameworksDirectory returns a directory with the programs of the directory frameworks, with the
// files that they share with those of the directory e2b, and with the packages that they use.
func frameworksDirectory(t *testing.T, packages string) string {
	t.Helper()
	directory := conformance.CopyOf(t, "frameworks")
	for _, shared := range []string{"calls.mjs", "resolve.mjs"} {
		content, err := os.ReadFile(filepath.Join("e2b", shared))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, shared), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(packages, filepath.Join(directory, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return directory
}
