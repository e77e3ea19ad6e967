package e2e_test

import (
	"testing"

	"sandbox.internal/test/e2e/conformance"
)

func TestLimitsAreTrueInside(t *testing.T) {
	t.Parallel()
	conformance.TrueLimits(t, start(t, conformance.Plan{}).Service, "")
}
