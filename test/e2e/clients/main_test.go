// Package clients_test has the tests of what people use: the command line, the generated clients
// and ours, and MCP, on the service's own engine.
package clients_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
)

const (
	egressImage  = localengine.EgressImage
	busyboxImage = localengine.BusyboxImage
	baseImage    = localengine.BaseImage
	pythonImage  = localengine.PythonImage
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // most of the time tests wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		localengine.Remove()
		conformance.RemoveBuilt()
		if compiled.directory != "" {
			_ = os.RemoveAll(compiled.directory)
		}
		os.Exit(code)
	}))
}

// service is a lifecycle service under test.
type service struct{ *conformance.Service }

// start returns a running service. At the end of the test everything that it has made is deleted
// through it, and must be gone.
func start(t *testing.T, p conformance.Plan) *service {
	t.Helper()
	return &service{conformance.Start(t, localengine.New("crun").Backend(), p)}
}

// startWithPython returns a service that has pythonImage.
func startWithPython(t *testing.T, p conformance.Plan) *service {
	t.Helper()
	on := localengine.New("crun")
	on.Python = true
	return &service{conformance.Start(t, on.Backend(), p)}
}
