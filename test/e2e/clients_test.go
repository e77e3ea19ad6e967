package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// TestTypeScriptClient compiles sdk/typescript with every strictness that there is, its examples and
// its tests too, and runs them against a service.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	folder := buildTypeScript(t)
	s := start(t, lives.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	environment := append(s.variables(), "SANDBOX_IMAGE="+busyboxImage,
		"SANDBOX_CODE_IMAGE="+"sandbox/python:dev")
	for _, name := range []string{"unit/http", "unit/sse", "live/life", "live/inside", "live/cuts",
		"live/terminals", "live/code", "live/network", "live/examples"} {
		t.Run(name, func(t *testing.T) {
			t.Log(tool(t, folder, environment, "node", "--test", "build/test/"+name+".test.js"))
		})
	}
	t.Run("live/restart", func(t *testing.T) { restartUnder(t, s, folder, environment) })
}

// restartUnder runs a test of the client that asks for restarts of its service.
func restartUnder(t *testing.T, s *service, folder string, environment []string) {
	asked, restarted := make(chan struct{}), make(chan string)
	control := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			select {
			case asked <- struct{}{}:
				_, _ = io.WriteString(w, <-restarted)
			case <-r.Context().Done():
			}
		}))
	defer control.Close()
	defer close(restarted) // for a request that waits when a restart has failed
	done := make(chan struct{})
	var output []byte
	var err error
	go func() {
		defer close(done)
		command := exec.CommandContext(t.Context(), "node", "--test",
			"build/test/live/restart.test.js")
		command.Dir, command.WaitDelay = folder, time.Minute
		command.Env = append(append(os.Environ(), environment...), "RESTART_URL="+control.URL)
		output, err = command.CombinedOutput()
	}()
	for {
		select {
		case <-asked:
			s.Halt(t)
			s.Boot(t)
			restarted <- s.URL
		case <-done:
			if err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			t.Logf("%s", output)
			return
		}
	}
}

// TestTypeScriptTypesAreCurrent compares the types of sdk/typescript with what the contracts
// generate.
func TestTypeScriptTypesAreCurrent(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	tool(t, "../..", nil, "scripts/typescript.sh", folder)
	for _, name := range []string{"lifecycle", "execd"} {
		// The go command repeats its cached result until a file that the test read changes.
		if _, err := os.Stat(contractFile(t, name)); err != nil {
			t.Fatal(err)
		}
		generated, err := os.ReadFile(filepath.Join(folder, name+".ts"))
		if err != nil {
			t.Fatal(err)
		}
		committed, err := os.ReadFile(filepath.Join(typeScript, "src/gen", name+".ts"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(generated, committed) {
			t.Errorf("sdk/typescript/src/gen/%s.ts is not what its contract generates: "+
				"run `make generate` and commit the result", name)
		}
	}
}

// typeScript is the TypeScript client.
const typeScript = "../../sdk/typescript"

// buildTypeScript compiles the TypeScript client in a folder of its own, as it is packed for its
// users: its tests, its examples and the code of its README import it by its name.
func buildTypeScript(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"src", "test", "examples"} {
		if err := os.CopyFS(filepath.Join(folder, name),
			os.DirFS(filepath.Join(typeScript, name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"package.json", "tsconfig.json", "README.md"} {
		content, err := os.ReadFile(filepath.Join(typeScript, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, folder, name, string(content))
	}
	var readme strings.Builder
	for _, rest := range strings.Split(readPage(t, "sdk/typescript/README.md"), "```ts\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		readme.WriteString(block)
	}
	write(t, filepath.Join(folder, "examples"), "readme.ts", readme.String())
	if err := os.Symlink(nodePackages(t), filepath.Join(folder, "node_modules")); err != nil {
		t.Fatal(err)
	}
	tool(t, folder, nil, "node_modules/.bin/tsc", "-p", ".")
	tool(t, folder, nil, "node_modules/.bin/tsc", "-p", "test")
	return folder
}

// nodePackages is the folder with the packages of sdk/typescript/package-lock.json.
func nodePackages(t *testing.T) string {
	t.Helper()
	packages := lastLine(tool(t, "../..", nil, "scripts/node.sh", "sdk/typescript"))
	return filepath.Join(packages, "node_modules")
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
	return []string{"SANDBOX_URL=" + s.URL, "SERVICE_API_KEY=" + lives.AdminKey}
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
