package e2e_test

import "testing"

// TestResourcesThatTheHostDoesNotHave fail clearly, and are not ignored. No machine has so many GPUs.
func TestResourcesThatTheHostDoesNotHave(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	gpus, cpus, memory := idle(), idle(), idle()
	for r, quantity := range map[**string]string{
		&gpus.ResourceLimits.Gpu: "4096", &cpus.ResourceLimits.CPU: "99", &memory.ResourceLimits.Memory: "1024Ti",
	} {
		*r = &quantity
	}
	for field, id := range map[string]string{"gpu": s.create(t, gpus), "cpu": s.create(t, cpus), "memory": s.create(t, memory)} {
		status := s.await(t, id, "Failed").Status
		if status.Reason != "RESOURCE_LIMIT_EXCEEDED" {
			t.Errorf("%s: the reason is %s", field, status.Reason)
		}
		contains(t, status.Message, "resourceLimits."+field)
	}
}
