package batch

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestStopAnnotation: its value is the reason of the end, and an empty one ends nothing.
func TestStopAnnotation(t *testing.T) {
	for _, want := range []string{"", v1alpha1.ReasonUserDelete} {
		b := new(v1alpha1.BatchSandbox)
		b.Annotations = map[string]string{v1alpha1.AnnotationStop: want}
		if reason, _ := stopReason(b, time.Now()); reason != want {
			t.Errorf("with the annotation %q the batch stops for %q", want, reason)
		}
	}
}

// TestExpired: only the end that the controller began, because the time was up, is an expiry: a pod
// and a task-executor may give the reason EXPIRED as well.
func TestExpired(t *testing.T) {
	b := new(v1alpha1.BatchSandbox)
	b.Spec.Replicas, b.Status.Phase = 1, v1alpha1.PhaseRunning
	hostile := b.DeepCopy()
	hostile.Spec.TaskTemplate = new(v1alpha1.TaskTemplate)
	hostile.Spec.TaskResourcePolicyWhenCompleted = v1alpha1.TaskRelease
	at := observed{now: time.Now(), sandboxes: make([]sandbox, 1), stopped: true,
		tasks: []TaskState{{Phase: TaskFailed, Reason: v1alpha1.ReasonExpired}}}
	hostile.Status = decide(hostile, at)
	if s := &hostile.Status; s.Phase != v1alpha1.PhaseFailed ||
		s.Reason != v1alpha1.ReasonExpired || expired(s) {
		t.Errorf("a task that failed for the reason EXPIRED: expired %t, %+v", expired(s), *s)
	}
	at.tasks, at.unreachableNode = nil, "node" // so it ends in Failed, for another reason
	b.Spec.ExpireTime = &metav1.Time{Time: at.now}
	for range 2 {
		b.Status = decide(b, at)
	}
	if s := &b.Status; s.Phase != v1alpha1.PhaseFailed || !expired(s) {
		t.Errorf("the time of the batch was up: expired %t, %+v", expired(s), *s)
	}
}
