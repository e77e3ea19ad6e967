package pool

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestNeverServes: a batch does not wait for a Pool that will never give it what it asks for, and holds up
// no other.
func TestNeverServes(t *testing.T) {
	pool := func(most int32, ends bool) *v1alpha1.Pool {
		pool := new(v1alpha1.Pool)
		pool.Spec.CapacitySpec.PoolMax = most
		if ends {
			pool.DeletionTimestamp = new(metav1.Time)
		}
		return pool
	}
	for name, test := range map[string]struct {
		pool     *v1alpha1.Pool
		replicas int32
		want     error
	}{
		"enough":              {pool(3, false), 3, nil},
		"more than poolMax":   {pool(3, false), 4, v1alpha1.ErrPoolTooSmall},
		"a poolMax of 0":      {pool(0, false), 1, v1alpha1.ErrPoolTooSmall},
		"it is being deleted": {pool(3, true), 1, v1alpha1.ErrPoolEnds},
	} {
		if err := neverServes(test.pool, batchOf("b", 1, test.replicas)); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// TestTemplateWithUnknownField: such a Pool makes no pods, and says why.
func TestTemplateWithUnknownField(t *testing.T) {
	pool := new(v1alpha1.Pool)
	const text = `{"template": {"spec": {"containers": [{"name": "main", "image": "x", "resorces": {}}]}}, "capacitySpec": {}}`
	if err := pool.Spec.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	const want = "spec.template.spec.containers[0].resorces: unknown field"
	if err := checkTemplate(pool); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
