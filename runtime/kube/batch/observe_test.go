package batch

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestObserve: what is read from the statuses that a kubelet reports.
func TestObserve(t *testing.T) {
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(code int32, reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, test := range map[string]struct {
		phase     corev1.PodPhase
		podReason string
		main      corev1.ContainerState
		sidecar   corev1.ContainerState
		condition corev1.PodConditionType
		policy    corev1.RestartPolicy
		pod       func(pod *corev1.Pod)
		want      sandbox
	}{
		"on a node": {phase: corev1.PodPending, want: sandbox{reason: v1alpha1.ReasonContainerStarting, message: "makes the pod"}},
		"pulls": {phase: corev1.PodPending, condition: corev1.PodReadyToStartContainers, main: waits("ContainerCreating", ""),
			want: sandbox{reason: v1alpha1.ReasonImagePulling, message: "image"}},
		"cannot pull": {phase: corev1.PodPending, main: waits("ImagePullBackOff", "no basic auth credentials"),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError, message: "no basic auth credentials"}},
		"cannot pull yet": {phase: corev1.PodPending, main: waits("ErrImagePull", "toomanyrequests: slow down"),
			want: sandbox{reason: v1alpha1.ReasonImagePullError, message: "slow down"}},
		"is no image": {phase: corev1.PodPending, main: waits("InvalidImageName", "timeout"),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError, message: "timeout"}},
		"lacks a secret": {phase: corev1.PodPending, main: waits("CreateContainerConfigError", "secret \"s\" not found"),
			want: sandbox{reason: v1alpha1.ReasonContainerError, message: "secret"}},
		"loops": {phase: corev1.PodRunning, policy: corev1.RestartPolicyAlways, main: waits("CrashLoopBackOff", "back-off"),
			want: sandbox{reason: v1alpha1.ReasonContainerError, message: "again and again"}},
		"not ready": {phase: corev1.PodRunning, main: runs, want: sandbox{reason: v1alpha1.ReasonContainerStarting, message: "not proven"}},
		"ready":     {phase: corev1.PodRunning, main: runs, condition: corev1.PodReady, want: sandbox{usable: true, reason: v1alpha1.ReasonContainerRunning}},
		"exits beside a sidecar": {phase: corev1.PodRunning, main: ended(2, "Error", "last words"), sidecar: runs,
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonEntrypointExited, message: "exit code 2:\nlast words"}},
		"exits and comes back": {phase: corev1.PodRunning, policy: corev1.RestartPolicyAlways, main: ended(2, "Error", ""),
			want: sandbox{reason: v1alpha1.ReasonContainerStarting}},
		"succeeds": {phase: corev1.PodSucceeded, main: ended(0, "Completed", ""),
			want: sandbox{ended: true, reason: v1alpha1.ReasonEntrypointExited, message: "exit code 0"}},
		"uses too much": {phase: corev1.PodFailed, main: ended(137, "OOMKilled", ""),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonOOMKilled, message: "memory"}},
		"does not start": {phase: corev1.PodFailed, main: ended(128, "StartError", "exec: no such file"),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonContainerError, message: "no such file"}},
		"the sidecar fails": {phase: corev1.PodFailed, sidecar: ended(1, "Error", ""),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonEntrypointExited, message: "container sidecar"}},
		"evicted": {phase: corev1.PodFailed, podReason: "Evicted",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonResourceLimit, message: "evicted"}},
		"refused by the node": {phase: corev1.PodFailed, podReason: "OutOfcpu",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonResourceLimit, message: "OutOfcpu"}},
		"the node stops": {phase: corev1.PodFailed, podReason: "NodeShutdown",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonRemovedExternally, message: "NodeShutdown"}},
		"too long": {phase: corev1.PodFailed, podReason: "DeadlineExceeded",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonExpired, message: "activeDeadlineSeconds"}},
		"deleted": {phase: corev1.PodRunning, condition: corev1.PodReady, main: runs,
			pod:  func(pod *corev1.Pod) { now := metav1.Now(); pod.DeletionTimestamp = &now },
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonRemovedExternally, message: "not by the controller"}},
		"no room": {phase: corev1.PodPending, pod: func(pod *corev1.Pod) {
			pod.Spec.NodeName = ""
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "Insufficient cpu"}}
		}, want: sandbox{reason: v1alpha1.ReasonResourceLimit, message: "Insufficient cpu"}},
		"unseen": {phase: corev1.PodPending, pod: func(pod *corev1.Pod) { pod.Spec.NodeName = "" },
			want: sandbox{reason: v1alpha1.ReasonProvisioning}},
	} {
		pod := new(corev1.Pod)
		pod.Spec.NodeName, pod.Spec.RestartPolicy = "n", corev1.RestartPolicyNever
		if test.policy != "" {
			pod.Spec.RestartPolicy = test.policy
		}
		pod.Spec.Containers = []corev1.Container{{Name: v1alpha1.ContainerTaskExecutor}, {Name: "main", Image: "image"}, {Name: "sidecar"}}
		pod.Status.Phase, pod.Status.Reason = test.phase, test.podReason
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: test.main}, {Name: "sidecar", State: test.sidecar}}
		if test.condition != "" {
			pod.Status.Conditions = []corev1.PodCondition{{Type: test.condition, Status: corev1.ConditionTrue}}
		}
		if test.pod != nil {
			test.pod(pod)
		}
		got, want := observe(pod), test.want
		if got.usable != want.usable || got.ended != want.ended || got.failed != want.failed || got.fatal != want.fatal || got.reason != want.reason ||
			!strings.Contains(got.message, want.message) {
			t.Errorf("%s: usable %v, ended %v, failed %v, fatal %v, %s: %s", name, got.usable, got.ended, got.failed, got.fatal, got.reason, got.message)
		}
	}
}
