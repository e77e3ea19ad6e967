// Package local_test has the tests of the whole on the service's own engine: the table of lives,
// and what this engine alone promises.
package local_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/e2e/conformance/localengine"
)

// usual is the OCI runtime of sandboxes that do not choose another one.
var usual = flag.String("runtime", "crun", "the OCI runtime of sandboxes: crun, runc or runsc")

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // most of the time tests wait
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		localengine.Remove()
		conformance.RemoveBuilt()
		os.Exit(code)
	}))
}
