package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/e2e/lives"
)

// building is how long a generator or a compiler may take that has nothing in its caches, on a busy
// machine.
const building = 10 * time.Minute

// TestTypeScriptClient generates a TypeScript client of both contracts, compiles it with every
// strictness that there is, and takes a sandbox through its life with it.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	s := start(t, lives.Plan{})
	folder := copyOf(t, "clients/typescript")
	packages := filepath.Join(lastLine(tool(t, "../..", nil, "scripts/node.sh", "test/e2e/clients/typescript")), "node_modules")
	if err := os.Symlink(packages, filepath.Join(folder, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lifecycle", "execd"} {
		tool(t, folder, nil, "node_modules/.bin/openapi-typescript", contractFile(t, name),
			"--default-non-nullable", "false", "-o", "gen/"+name+".ts")
	}
	tool(t, folder, nil, "node_modules/.bin/tsc")
	t.Log(tool(t, folder, s.variables(), "node", "built/main.js", busyboxImage))
}

// TestOgenClient does the same in Go with ogen: a second opinion on what the contracts say, beside
// the generator that the service is made with.
func TestOgenClient(t *testing.T) {
	t.Parallel()
	s := start(t, lives.Plan{})
	folder := copyOf(t, "clients/ogen")
	for _, name := range []string{"lifecycle", "execd"} {
		tool(t, folder, nil, "go", "tool", "ogen", "--clean", "--package", name, "--target", name,
			contractFile(t, name))
	}
	// Trimmed paths make the build cache valid for every temporary folder.
	t.Log(tool(t, folder, s.variables(), "go", "run", "-trimpath", ".", busyboxImage))
}

// variables have the service's address for a client.
func (s *service) variables() []string {
	return []string{"SERVICE_URL=" + s.URL, "SERVICE_API_KEY=" + lives.AdminKey}
}

func contractFile(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../openapi/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// copyOf copies a folder into a temporary one, where what is generated may be added.
func copyOf(t *testing.T, folder string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	return to
}

// tool runs a program in a folder and returns what it prints; it must succeed.
func tool(t *testing.T, folder string, environment []string, name string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), building)
	defer stop()
	if strings.Contains(name, "/") && !filepath.IsAbs(name) { // relative to the folder, and not to where the test is
		var err error
		if name, err = filepath.Abs(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(ctx, name, args...)
	// The test's own flags are not for modules of others.
	command.Dir, command.Env = folder,
		append(append(os.Environ(), "GOFLAGS=", "GOWORK=off"), environment...)
	command.WaitDelay = time.Minute
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
