package local_test

import (
	"fmt"
	"testing"

	"sandbox.internal/test/e2e/lives"
)

func TestLimitsAreTrueInside(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			s := lives.Start(t, onLocal(newMachines()), lives.Plan{
				Settings: fmt.Sprintf("[[runtime.classes]]\nname = \"other\"\nhandler = %q\n", runtime),
			})
			lives.TrueLimits(t, s, "other")
		})
	}
}
