package clients_test

import (
	"path/filepath"
	"strings"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

// TestPythonClientProxies runs the tests of the Python client that need a proxy, of both faces.
func TestPythonClientProxies(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	python, directory := conformance.Script(t, "python.sh"), conformance.CopyOf(t, "../../../clients/python")
	environment := append(s.Variables(), "SANDBOX_URL="+s.URL, "SANDBOX_IMAGE="+busyboxImage,
		"PYTHONPATH="+filepath.Join(directory, "src"))
	environment = append(environment, conformance.Forward(t, s.URL)...)
	for _, module := range []string{"tests.test_proxy", "tests.test_async_proxy", "tests.test_sync_proxy"} {
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			t.Log(conformance.Tool(t, directory, environment, python, "-m", "unittest", "--verbose", module))
		})
	}
}

// TestTypeScriptClientProxies runs those of the TypeScript client.
func TestTypeScriptClientProxies(t *testing.T) {
	t.Parallel()
	s, directory := start(t, conformance.Plan{}), buildTypeScript(t)
	environment := append(s.Variables(), "SANDBOX_IMAGE="+busyboxImage, "SANDBOX_CODE_IMAGE="+pythonImage)
	environment = append(environment, conformance.Forward(t, s.URL)...)
	for _, variable := range environment {
		if file, found := strings.CutPrefix(variable, "PROXY_CA="); found {
			environment = append(environment, "NODE_EXTRA_CA_CERTS="+file)
		}
	}
	for _, name := range []string{"unit/proxy", "live/proxy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Log(conformance.Tool(t, directory, environment, "node", "--test", "build/test/"+name+".test.js"))
		})
	}
}
