package clients_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandbox.internal/server/config"
	"sandbox.internal/test/e2e/conformance"
)

const (
	pythonClient     = "../../../clients/python"
	exampleDirectory = "../../../examples"
)

// TestPythonClient runs the tests of the Python client, of each face in a process of its own, its
// examples and its README, with the system's Python. The example that draws is a test of test/e2e.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	slow := &config.RateLimit{RequestsPerSecond: 1, Burst: 1}
	s := startWithPython(t, conformance.Plan{
		Settings: fmt.Sprintf("[egress]\nimage = %q\n", egressImage),
		Keys: []config.Key{ // one for each face
			{Name: "viewer", SHA256: conformance.Digest(conformance.ViewerKey), Role: config.RoleViewer, RateLimit: slow},
			{Name: "slow", SHA256: conformance.Digest(conformance.SlowKey), Role: config.RoleViewer, RateLimit: slow},
		},
	})
	python, directory := pythonHere(t), conformance.CopyOf(t, pythonClient)
	environment := append(s.Variables(), "SANDBOX_URL="+s.URL, "SANDBOX_IMAGE="+busyboxImage,
		"SANDBOX_CODE_IMAGE="+pythonImage, "PYTHONPATH="+filepath.Join(directory, "src"))
	environment = append(environment, overTLS(t, s.URL)...)

	tests := func(viewer string, modules ...string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			variables := append(slices.Clone(environment), "SANDBOX_VIEWER_KEY="+viewer)
			t.Log(conformance.Tool(t, directory, variables, python,
				append([]string{"-m", "unittest", "--verbose"}, modules...)...))
		}
	}
	t.Run("pure", tests("", "tests.test_pure"))
	t.Run("asynchronous", tests(conformance.ViewerKey,
		"tests.test_async_life", "tests.test_async_inside", "tests.test_async_cuts"))
	t.Run("synchronous", tests(conformance.SlowKey,
		"tests.test_sync_life", "tests.test_sync_inside", "tests.test_sync_cuts"))

	for name, example := range map[string]struct{ image, prints string }{
		"run_command.py": {busyboxImage, "the last is 100"},
		"many.py":        {busyboxImage, "the sum of the squares is 30"},
		"restricted.py":  {busyboxImage, "deny 192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := filepath.Join(directory, "examples", name)
			out := conformance.Tool(t, t.TempDir(), environment, python, script, example.image)
			if !strings.Contains(out, example.prints) {
				t.Errorf("the example prints %q and not %q", out, example.prints)
			}
		})
	}
	t.Run("README", func(t *testing.T) {
		t.Parallel()
		for _, block := range pythonBlocks(t) {
			t.Log(conformance.Tool(t, directory, environment, python, "-c", block))
		}
	})
}

// overTLS makes the service available with TLS too, and returns the variables that say where.
func overTLS(t *testing.T, service string) []string {
	t.Helper()
	target, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.FlushInterval = -1
	transport := &http.Transport{}
	forward.Transport = transport
	server := httptest.NewTLSServer(forward)
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	certificate := pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"SANDBOX_TLS_URL=" + server.URL, "SANDBOX_TLS_CA=" + file}
}

// pythonBlocks are the programs of the client's README, for the service under test.
func pythonBlocks(t *testing.T) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pythonClient, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	changes := strings.NewReplacer(
		`"http://localhost:8080", "KEY"`, "", // the environment has them
		"python:3.12", baseImage,
	)
	fences := regexp.MustCompile("(?s)```python\n(.*?)```")
	for _, match := range fences.FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, changes.Replace(match[1]))
	}
	if len(blocks) != 2 {
		t.Fatalf("the README has %d programs", len(blocks))
	}
	return blocks
}

// TestPythonClientTypes checks the types of the Python client, its tests and its examples, and of
// what is Python in examples/.
func TestPythonClientTypes(t *testing.T) {
	t.Parallel()
	directory := conformance.CopyOf(t, pythonClient)
	if err := os.CopyFS(filepath.Join(directory, "examples/whole"), os.DirFS(exampleDirectory)); err != nil {
		t.Fatal(err)
	}
	packages := conformance.NodePackages(t, "test/e2e/clients/python")
	checker := filepath.Join(packages, "pyright", "index.js")
	t.Log(conformance.Tool(t, directory, nil, "node", checker, "--pythonpath", pythonHere(t)))
}

// TestPythonClientPackage builds the package of the Python client without a network, and imports
// it.
func TestPythonClientPackage(t *testing.T) {
	t.Parallel()
	python, directory := pythonHere(t), conformance.CopyOf(t, pythonClient)
	wheel := lastLine(conformance.Tool(t, directory, nil, python, "-c",
		"from setuptools import build_meta; print(build_meta.build_wheel('.'))"))
	environment := []string{"PYTHONPATH=" + filepath.Join(directory, wheel)}
	t.Log(conformance.Tool(t, t.TempDir(), environment, python, "-c", `
import importlib.resources, sandboxes
assert ".whl" in sandboxes.__file__, sandboxes.__file__
assert (importlib.resources.files(sandboxes) / "py.typed").is_file()
for name in sandboxes.__all__:
    assert getattr(sandboxes, name).__doc__, name
`))
}

// pythonHere is a Python that the client supports.
func pythonHere(t *testing.T) string {
	t.Helper()
	return conformance.Script(t, "python.sh")
}

// lastLine is what a script of ours answers.
func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}
