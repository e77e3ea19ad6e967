package pool

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestNeverServes: a batch does not wait for a Pool that will never give it what it asks for, and
// holds up no other.
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

// TestTemplateThatWaits: pods that wait for a sandbox are never used twice, and have what they need
// for that.
func TestTemplateThatWaits(t *testing.T) {
	pool := new(v1alpha1.Pool)
	pool.Name = "p"
	pool.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "main", Command: []string{"/opt/sandbox/execd-init", "await"}}}}}
	if err := checkTemplate(pool); err != nil {
		t.Error(err)
	}
	if pod := newPod(pool, "r"); pod.Spec.Containers[0].TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		t.Error("a failed sandbox would not say why")
	}
	restarted := pool.DeepCopy()
	restarted.Spec.RecycleStrategy = v1alpha1.RecycleRestart
	if err := checkTemplate(restarted); err == nil || !strings.Contains(err.Error(), "spec.recycleStrategy must be Delete") {
		t.Errorf("with Restart: %v", err)
	}
	pool.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	if err := checkTemplate(pool); err == nil || !strings.Contains(err.Error(), "spec.template.spec.restartPolicy must be Never") {
		t.Errorf("with Always: %v", err)
	}
}
