package clients_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
)

// TestTypeScriptClient compiles clients/typescript with every strictness that there is, its
// examples and its tests too, and runs them against a service.
func TestTypeScriptClient(t *testing.T) {
	t.Parallel()
	directory := buildTypeScript(t)
	s := startWithPython(t, conformance.Plan{Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage)})
	environment := append(s.Variables(), "SANDBOX_IMAGE="+busyboxImage,
		"SANDBOX_CODE_IMAGE="+pythonImage)
	for _, name := range []string{"unit/http", "unit/sse", "unit/readme", "live/life", "live/inside", "live/cuts",
		"live/terminals", "live/code", "live/network", "live/examples"} {
		t.Run(name, func(t *testing.T) {
			t.Log(conformance.Tool(t, directory, environment, "node", "--test", "build/test/"+name+".test.js"))
		})
	}
	t.Run("live/restart", func(t *testing.T) { restartUnder(t, s, directory, environment) })
}

// restartUnder runs a test of the client that asks for restarts of its service.
func restartUnder(t *testing.T, s *service, directory string, environment []string) {
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
		command.Dir, command.WaitDelay = directory, time.Minute
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

// TestTypeScriptTypesAreCurrent compares the types of clients/typescript with what the contracts
// generate.
func TestTypeScriptTypesAreCurrent(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	conformance.Script(t, "typescript.sh", directory)
	for _, name := range []string{"lifecycle", "execd"} {
		// The go command repeats its cached result until a file that the test read changes.
		if _, err := os.Stat(filepath.Join(conformance.Root(t), "openapi", name+".yaml")); err != nil {
			t.Fatal(err)
		}
		generated, err := os.ReadFile(filepath.Join(directory, name+".ts"))
		if err != nil {
			t.Fatal(err)
		}
		committed, err := os.ReadFile(filepath.Join(typeScript, "src/gen", name+".ts"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(generated, committed) {
			t.Errorf("clients/typescript/src/gen/%s.ts is not what its contract generates: "+
				"run `make generate` and commit the result", name)
		}
	}
}

// typeScript is the TypeScript client.
const typeScript = "../../../clients/typescript"

// compiled is the TypeScript client, compiled once for all tests. TestMain removes its directory.
var compiled struct {
	once      sync.Once
	directory string
}

// buildTypeScript returns a directory of the test's own with the TypeScript client, compiled as it
// is packed for its users: its tests, its examples and the code of its README import it by its
// name.
func buildTypeScript(t *testing.T) string {
	t.Helper()
	compiled.once.Do(func() {
		directory, err := os.MkdirTemp("", "sandbox-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				_ = os.RemoveAll(directory)
			}
		}()
		compileTypeScript(t, directory)
		compiled.directory = directory
	})
	if compiled.directory == "" {
		t.Fatal("the TypeScript client was not compiled: the first test that uses it says why")
	}
	directory := t.TempDir()
	conformance.Tool(t, directory, nil, "cp", "-a", compiled.directory+"/.", ".")
	return directory
}

// compileTypeScript puts the sources of the client and what was compiled of them into a directory.
func compileTypeScript(t *testing.T, directory string) {
	t.Helper()
	for _, name := range []string{"src", "test", "examples"} {
		if err := os.CopyFS(filepath.Join(directory, name),
			os.DirFS(filepath.Join(typeScript, name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"package.json", "tsconfig.json", "README.md"} {
		content, err := os.ReadFile(filepath.Join(typeScript, name))
		if err != nil {
			t.Fatal(err)
		}
		conformance.Write(t, directory, name, string(content))
	}
	var readme strings.Builder
	for _, rest := range strings.Split(conformance.ReadPage(t, "clients/typescript/README.md"), "```ts\n")[1:] {
		block, _, _ := strings.Cut(rest, "```")
		readme.WriteString(block)
	}
	conformance.Write(t, filepath.Join(directory, "examples"), "readme.ts", readme.String())
	if err := os.Symlink(conformance.NodePackages(t, "clients/typescript"), filepath.Join(directory, "node_modules")); err != nil {
		t.Fatal(err)
	}
	conformance.Tool(t, directory, nil, "node_modules/.bin/tsc", "-p", ".")
	conformance.Tool(t, directory, nil, "node_modules/.bin/tsc", "-p", "test")
}

// TestOgenClient does the same in Go with ogen: a second opinion on what the contracts say, beside
// the generator that the service is made with.
func TestOgenClient(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	directory := conformance.CopyOf(t, "ogen")
	for _, name := range []string{"lifecycle", "execd"} {
		conformance.Tool(t, directory, nil, "go", "tool", "ogen", "--clean", "--package", name, "--target", name,
			filepath.Join(conformance.Root(t), "openapi", name+".yaml"))
	}
	// Trimmed paths make the build cache valid for every temporary directory.
	t.Log(conformance.Tool(t, directory, s.Variables(), "go", "run", "-trimpath", ".", busyboxImage))
}
