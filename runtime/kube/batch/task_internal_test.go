package batch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestTokenOfATask: the token of a sandbox's execd is that of its own task, and of two the last.
func TestTokenOfATask(t *testing.T) {
	token := func(values ...string) (env []v1alpha1.EnvVar) {
		for _, value := range values {
			env = append(env, v1alpha1.EnvVar{Name: v1alpha1.EnvExecdToken, Value: value})
		}
		return env
	}
	b := new(v1alpha1.BatchSandbox)
	b.Spec.TaskTemplate = &v1alpha1.TaskTemplate{Env: token("first", "last")}
	b.Spec.ShardTaskPatches = []runtime.RawExtension{{},
		{Raw: []byte(`{"env":[{"name":"EXECD_ACCESS_TOKEN","value":"own"}]}`)},
		{Raw: []byte(`{"env":[]}`)}, {Raw: []byte(`{"env":1}`)}}
	pod := new(corev1.Pod)
	pod.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{
		{Name: v1alpha1.EnvExecdToken, Value: "x"},
		{Name: v1alpha1.EnvExecdToken, Value: "container"}, {Name: "OTHER", Value: "y"}}}}
	r := new(Reconciler)
	for number, want := range []string{"last", "own", "container", "", "last"} {
		got, err := r.execdToken(b, number, pod)(t.Context())
		if got != want || (err != nil) != (number == 3) {
			t.Errorf("sandbox %d: %q, %v; want %q", number, got, err, want)
		}
	}
}
