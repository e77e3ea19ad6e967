package e2e_test

import (
	"testing"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
)

// TestResourcesThatTheHostDoesNotHave fail clearly, and are not ignored. No machine has so many
// GPUs.
func TestResourcesThatTheHostDoesNotHave(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	gpus, cpus, memory := "4096", "99", "1024Ti"
	for field, c := range map[string]struct {
		limits   lifecycle.ResourceLimits
		quantity string
	}{
		"gpu":    {lifecycle.ResourceLimits{Gpu: &gpus}, gpus},
		"cpu":    {lifecycle.ResourceLimits{CPU: &cpus}, cpus},
		"memory": {lifecycle.ResourceLimits{Memory: &memory}, memory},
	} {
		r := idle()
		r.ResourceLimits = &c.limits
		status := s.Await(t, s.Create(t, r), "Failed").Status
		if status.Reason != "RESOURCE_LIMIT_EXCEEDED" {
			t.Errorf("%s: the reason is %s", field, status.Reason)
		}
		conformance.Contains(t, status.Message, "resourceLimits."+field, c.quantity)
	}
}
