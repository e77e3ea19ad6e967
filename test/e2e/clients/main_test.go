// Package clients_test has the tests of what people use: the command line, the generated clients
// and ours, and MCP, on the service's own engine.
package clients_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/test/e2e/lives"
	"sandbox.internal/test/e2e/lives/onlocal"
)

const (
	egressImage  = onlocal.EgressImage
	busyboxImage = onlocal.BusyboxImage
	baseImage    = onlocal.BaseImage
	pythonImage  = onlocal.PythonImage
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // most of the time tests wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		onlocal.Remove()
		lives.RemoveBuilt()
		os.Exit(code)
	}))
}

// service is a lifecycle service under test.
type service struct{ *lives.Service }

// start returns a running service. At the end of the test everything that it has made is deleted
// through it, and must be gone.
func start(t *testing.T, p lives.Plan) *service {
	t.Helper()
	return &service{lives.Start(t, onlocal.New("crun").Backend(), p)}
}

// startWithPython returns a service that has pythonImage.
func startWithPython(t *testing.T, p lives.Plan) *service {
	t.Helper()
	on := onlocal.New("crun")
	on.Python = true
	return &service{lives.Start(t, on.Backend(), p)}
}
