package claim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestFit: requests follow the limits, so that a pod stays in its class: what was equal stays
// equal, and less stays less.
func TestFit(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for name, tc := range map[string]struct{ requests, limits, wanted, want corev1.ResourceList }{
		"guaranteed": {list("1", "1Gi"), list("1", "1Gi"), list("1500m", "3Gi"), list("1500m", "3Gi")},
		"a quarter":  {list("250m", "256Mi"), list("1", "1Gi"), list("2", "4Gi"), list("500m", "1Gi")},
		"smaller":    {list("999m", "1073741823"), list("1", "1Gi"), list("1m", "1"), list("0", "0")},
		"huge":       {list("1", "1Ti"), list("2", "2Ti"), list("1000", "4000Ti"), list("500", "2000Ti")},
	} {
		resources := corev1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
		if !fit(&resources, tc.wanted) || !holds(resources.Limits, tc.wanted) || !holds(resources.Requests, tc.want) {
			t.Errorf("%s: %+v", name, resources)
		}
		if fit(&resources, tc.wanted) {
			t.Errorf("%s: it is changed again", name)
		}
	}
}
