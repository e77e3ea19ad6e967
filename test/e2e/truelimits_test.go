package e2e_test

import (
	"testing"

	"sandbox.internal/test/e2e/lives"
)

func TestLimitsAreTrueInside(t *testing.T) {
	t.Parallel()
	lives.TrueLimits(t, start(t, lives.Plan{}).Service, "")
}
