package local_test

import (
	"fmt"
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

func TestLimitsAreTrueInside(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{
				Settings: fmt.Sprintf("[[runtime.classes]]\nname = \"other\"\nhandler = %q\n", runtime),
			})
			conformance.TrueLimits(t, s, "other")
		})
	}
}
