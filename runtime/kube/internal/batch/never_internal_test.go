package batch

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestRefusalsForGood: what the API server says decides whether a batch waits or fails at once. The
// texts are those of its admission plug-ins LimitRanger, ResourceQuota and PodSecurity.
func TestRefusalsForGood(t *testing.T) {
	for text, want := range map[string]struct {
		reason  string
		invalid bool
	}{
		"maximum cpu usage per Container is 1, but limit is 2":                                                                {v1alpha1.ReasonInvalidTemplate, true},
		"[maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per Container is 1Gi, but limit is 2Gi]": {v1alpha1.ReasonInvalidTemplate, true},
		"minimum memory usage per Pod is 64Mi, but request is 16Mi":                                                           {v1alpha1.ReasonInvalidTemplate, true},
		"maximum memory usage per Container is 1Gi.  No limit is specified":                                                   {v1alpha1.ReasonInvalidTemplate, true},
		"cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000":                                   {v1alpha1.ReasonInvalidTemplate, true},
		"failed quota: q: must specify limits.cpu for: main; limits.memory for: main":                                         {v1alpha1.ReasonInvalidTemplate, true},
		`violates PodSecurity "baseline:latest": non-default capabilities`:                                                    {v1alpha1.ReasonInvalidTemplate, true},
		"exceeded quota: q, requested: pods=1, used: pods=10, limited: pods=10":                                               {v1alpha1.ReasonResourceLimit, false},
		"exceeded quota: q, requested: limits.cpu=8,pods=1, used: limits.cpu=0,pods=0, limited: limits.cpu=4,pods=10":         {v1alpha1.ReasonResourceLimit, true},
		"exceeded quota: q, requested: requests.memory=2Gi, used: requests.memory=1Gi, limited: requests.memory=2Gi":          {v1alpha1.ReasonResourceLimit, false},
		"exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0":                                                 {v1alpha1.ReasonResourceLimit, true},
	} {
		err := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "b-0", errors.New(text))
		why, again := classify(err)
		if again != nil || why.reason != want.reason || why.invalid != want.invalid {
			t.Errorf("%s: got %+v, %v", text, why, again)
		}
		if !strings.Contains(why.message, text) {
			t.Errorf("%s: a client reads %q", text, why.message)
		}
	}
}

// TestUnknownFieldMakesNoPod: neither of a template nor of a patch.
func TestUnknownFieldMakesNoPod(t *testing.T) {
	b := new(v1alpha1.BatchSandbox)
	b.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	b.Spec.ShardPatches = append(b.Spec.ShardPatches, b.Spec.ShardPatches...)
	b.Spec.UnknownField = "template.spec.containers[0].resorces: unknown field"
	if _, err := build(b, 0); err == nil || err.Error() != "spec."+b.Spec.UnknownField {
		t.Errorf("a template: %v", err)
	}
	_, err := patched(b.Spec.Template, []byte(`{"spec": {"containers": [{"name": "main", "resorces": {}}]}}`))
	if want := "spec.containers[0].resorces: unknown field"; err == nil || err.Error() != want {
		t.Errorf("a patch: %v, want %s", err, want)
	}
}

// TestEvictionIsSaid: a pod that a drain evicts ended by that, whatever its processes made of the
// signal.
func TestEvictionIsSaid(t *testing.T) {
	at := metav1.NewTime(time.Unix(1000, 0))
	pod := func(phase corev1.PodPhase, deleted bool, ended time.Time, reason string) *corev1.Pod {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-1", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main"}}}}
		pod.Name, pod.Status.Phase = "b-0", phase
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: reason, Message: "Eviction API: evicting", LastTransitionTime: at}}
		if deleted {
			pod.DeletionTimestamp = &at
		}
		if !ended.IsZero() {
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 143, FinishedAt: metav1.NewTime(ended)}}}}
		}
		return pod
	}
	const eviction = "EvictionByEvictionAPI"
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"it ends":          {pod(corev1.PodRunning, true, time.Time{}, eviction), "pod b-0 was evicted from node node-1, as a drain of the node does: Eviction API: evicting"},
		"it has ended":     {pod(corev1.PodFailed, true, at.Add(time.Second), eviction), "pod b-0 was evicted from node node-1, as a drain of the node does: Eviction API: evicting"},
		"by itself before": {pod(corev1.PodFailed, true, at.Add(-time.Minute), eviction), "container main ended with exit code 143"},
		"preempted":        {pod(corev1.PodRunning, true, time.Time{}, "PreemptionByScheduler"), "pod b-0 was removed from node node-1 for a pod of a higher priority: Eviction API: evicting"},
		"deleted":          {pod(corev1.PodRunning, true, time.Time{}, "Other"), "pod b-0 is being deleted, and not by the controller"},
	} {
		got := observe(test.pod)
		if !got.ended || !got.failed || got.message != test.want {
			t.Errorf("%s: got %q, want %q", name, got.message, test.want)
		}
	}
}
