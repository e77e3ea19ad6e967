package batch

import (
	"testing"
	"time"

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
	r := new(reconciler)
	for number, want := range []string{"last", "own", "container", "", "last"} {
		got, err := r.execdToken(b, number, pod)(t.Context())
		if got != want || (err != nil) != (number == 3) {
			t.Errorf("sandbox %d: %q, %v; want %q", number, got, err, want)
		}
	}
}

// TestTasksOfABatchThatStops: their numbers stay what they were, because nothing more is learned.
func TestTasksOfABatchThatStops(t *testing.T) {
	b := new(v1alpha1.BatchSandbox)
	b.Spec.Replicas, b.Spec.TaskTemplate = 2, new(v1alpha1.TaskTemplate)
	b.Status.Phase = v1alpha1.PhaseRunning
	at := observed{now: time.Now(), sandboxes: make([]sandbox, 2),
		tasks: []TaskState{{Phase: TaskRunning}, {Phase: TaskUnknown}}}
	b.Status = decide(b, at)
	want := v1alpha1.TaskStats{Running: 1, Unknown: 1}
	b.Annotations = map[string]string{v1alpha1.AnnotationStop: v1alpha1.ReasonUserDelete}
	at.tasks = nil
	for range 2 {
		b.Status = decide(b, at)
		if b.Status.Phase != v1alpha1.PhaseStopping || *b.Status.TaskStats != want {
			t.Errorf("%s, %+v; want %+v", b.Status.Phase, *b.Status.TaskStats, want)
		}
	}
	b.Status = v1alpha1.BatchSandboxStatus{} // it is stopped before it was looked at
	if b.Status = decide(b, at); *b.Status.TaskStats != (v1alpha1.TaskStats{Pending: 2}) {
		t.Errorf("%+v", *b.Status.TaskStats)
	}
}
