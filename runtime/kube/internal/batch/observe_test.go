package batch

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestObserve: what is read from the statuses that a kubelet reports.
func TestObserve(t *testing.T) {
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason,
			Message: message}}
	}
	ended := func(code int32, reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code,
			Reason: reason, Message: message}}
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	egress := func(state corev1.ContainerState) func(pod *corev1.Pod) {
		return func(pod *corev1.Pod) {
			always := corev1.ContainerRestartPolicyAlways
			pod.Spec.InitContainers = []corev1.Container{{Name: v1alpha1.ContainerEgress,
				RestartPolicy: &always}, {Name: "install"}}
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
				{Name: v1alpha1.ContainerEgress, State: state},
				{Name: "install", State: waits("PodInitializing", "")}}
		}
	}
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
		"on a node": {phase: corev1.PodPending,
			want: sandbox{reason: v1alpha1.ReasonContainerStarting, message: "makes the pod"}},
		"pulls": {phase: corev1.PodPending, condition: corev1.PodReadyToStartContainers,
			main: waits("ContainerCreating", ""),
			want: sandbox{reason: v1alpha1.ReasonImagePulling, message: "image"}},
		"cannot pull": {phase: corev1.PodPending,
			main: waits("ImagePullBackOff", "no basic auth credentials"),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError,
				message: "no basic auth credentials"}},
		"cannot pull yet": {phase: corev1.PodPending,
			main: waits("ErrImagePull", "toomanyrequests: slow down"),
			want: sandbox{reason: v1alpha1.ReasonImagePullError, message: "slow down"}},
		"cannot pull for a cause in an earlier message": {phase: corev1.PodPending,
			main: waits("ImagePullBackOff", `Back-off pulling image "image:1"`),
			want: sandbox{reason: v1alpha1.ReasonImagePullError, message: "image:1"}},
		"cannot pull for the cause in the message": {phase: corev1.PodPending,
			main: waits("ImagePullBackOff",
				`Back-off pulling image "image:1": ErrImagePull: no such manifest`),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError,
				message: "no such manifest"}},
		"there is no registry": {phase: corev1.PodPending, // as on one machine, a failure at once
			main: waits("ErrImagePull", "dial tcp 192.0.2.7:443: connect: connection refused"),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError, message: "refused"}},
		"is no image": {phase: corev1.PodPending, main: waits("InvalidImageName", "timeout"),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError, message: "timeout"}},
		"lacks a secret": {phase: corev1.PodPending,
			main: waits("CreateContainerConfigError", "secret \"s\" not found"),
			want: sandbox{reason: v1alpha1.ReasonContainerError, message: "secret"}},
		"loops": {phase: corev1.PodRunning, policy: corev1.RestartPolicyAlways,
			main: waits("CrashLoopBackOff", "back-off"),
			want: sandbox{reason: v1alpha1.ReasonContainerError, message: "again and again"}},
		"not ready": {phase: corev1.PodRunning, main: runs,
			want: sandbox{reason: v1alpha1.ReasonContainerStarting, message: "not proven"}},
		"ready": {phase: corev1.PodRunning, main: runs, condition: corev1.PodReady,
			want: sandbox{usable: true, reason: v1alpha1.ReasonContainerRunning}},
		"exits beside a sidecar": {phase: corev1.PodRunning, main: ended(2, "Error", "last words"),
			sidecar: runs,
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonEntrypointExited,
				message: "exit code 2:\nlast words"}},
		"exits and comes back": {phase: corev1.PodRunning, policy: corev1.RestartPolicyAlways,
			main: ended(2, "Error", ""),
			want: sandbox{reason: v1alpha1.ReasonContainerStarting}},
		"succeeds": {phase: corev1.PodSucceeded, main: ended(0, "Completed", ""),
			want: sandbox{ended: true, reason: v1alpha1.ReasonEntrypointExited,
				message: "exit code 0"}},
		"uses too much": {phase: corev1.PodFailed, main: ended(137, "OOMKilled", ""),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonOOMKilled,
				message: "memory"}},
		"does not start": {phase: corev1.PodFailed,
			main: ended(128, "StartError", "exec: no such file"),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonContainerError,
				message: "no such file"}},
		"the sidecar fails": {phase: corev1.PodFailed, sidecar: ended(1, "Error", ""),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonEntrypointExited,
				message: "container sidecar"}},
		"evicted": {phase: corev1.PodFailed, podReason: "Evicted",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonResourceLimit,
				message: "evicted"}},
		"refused by the node": {phase: corev1.PodFailed, podReason: "OutOfcpu",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonResourceLimit,
				message: "OutOfcpu"}},
		"the node stops": {phase: corev1.PodFailed, podReason: "NodeShutdown",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonRemovedExternally,
				message: "NodeShutdown"}},
		"too long": {phase: corev1.PodFailed, podReason: "DeadlineExceeded",
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonExpired,
				message: "activeDeadlineSeconds"}},
		"deleted": {phase: corev1.PodRunning, condition: corev1.PodReady, main: runs,
			pod: func(pod *corev1.Pod) { now := metav1.Now(); pod.DeletionTimestamp = &now },
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonRemovedExternally,
				message: "not by the controller"}},
		"insufficient resources": {phase: corev1.PodPending, pod: func(pod *corev1.Pod) {
			pod.Spec.NodeName = ""
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "Insufficient cpu"}}
		}, want: sandbox{reason: v1alpha1.ReasonResourceLimit, message: "Insufficient cpu"}},
		"the egress sidecar is not made": {phase: corev1.PodPending,
			pod:  egress(waits("CreateContainerError", "no such device")),
			want: sandbox{reason: v1alpha1.ReasonNetworkError, message: "no such device"}},
		"the egress sidecar ends": {phase: corev1.PodPending,
			pod:  egress(ended(1, "Error", "names no name server")),
			want: sandbox{reason: v1alpha1.ReasonNetworkError, message: "names no name server"}},
		"the egress sidecar ends again and again": {phase: corev1.PodPending,
			pod:  egress(waits("CrashLoopBackOff", "back-off")),
			want: sandbox{reason: v1alpha1.ReasonNetworkError, message: "again and again"}},
		"the egress sidecar's image cannot be pulled": {phase: corev1.PodPending,
			pod: egress(waits("ErrImagePull", "manifest unknown")),
			want: sandbox{fatal: true, reason: v1alpha1.ReasonImagePullError,
				message: "container egress"}},
		"the egress sidecar is not restarted": {phase: corev1.PodFailed,
			pod: egress(ended(1, "Error", "names no name server")),
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonNetworkError,
				message: "names no name server"}},
		"fails beside the egress sidecar": {phase: corev1.PodFailed,
			pod: func(pod *corev1.Pod) {
				egress(ended(137, "Error", ""))(pod)
				pod.Status.InitContainerStatuses[1].State = ended(1, "Error", "no space left")
			},
			want: sandbox{ended: true, failed: true, reason: v1alpha1.ReasonEntrypointExited,
				message: "container install ended with exit code 1:\nno space left"}},
		"has an IPv6 address": {phase: corev1.PodPending, pod: func(pod *corev1.Pod) {
			egress(runs)(pod)
			pod.Status.PodIP = "fd00::7"
		}, want: sandbox{reason: v1alpha1.ReasonNetworkError,
			message: "primary address is fd00::7"}},
		"has an IPv6 address without a sidecar": {phase: corev1.PodRunning, main: runs,
			pod:  func(pod *corev1.Pod) { pod.Status.PodIP = "fd00::7" },
			want: sandbox{reason: v1alpha1.ReasonContainerStarting, message: "not proven"}},
		"unseen": {phase: corev1.PodPending, pod: func(pod *corev1.Pod) { pod.Spec.NodeName = "" },
			want: sandbox{reason: v1alpha1.ReasonProvisioning}},
	} {
		pod := new(corev1.Pod)
		pod.Spec.NodeName, pod.Spec.RestartPolicy = "n", corev1.RestartPolicyNever
		if test.policy != "" {
			pod.Spec.RestartPolicy = test.policy
		}
		pod.Spec.Containers = []corev1.Container{{Name: v1alpha1.ContainerTaskExecutor},
			{Name: "main", Image: "image"}, {Name: "sidecar"}}
		pod.Status.Phase, pod.Status.Reason = test.phase, test.podReason
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: test.main},
			{Name: "sidecar", State: test.sidecar}}
		if test.condition != "" {
			pod.Status.Conditions = []corev1.PodCondition{{Type: test.condition,
				Status: corev1.ConditionTrue}}
		}
		if test.pod != nil {
			test.pod(pod)
		}
		got, want := observe(pod), test.want
		if got.usable != want.usable || got.ended != want.ended || got.failed != want.failed ||
			got.fatal != want.fatal || got.reason != want.reason ||
			!strings.Contains(got.message, want.message) {
			t.Errorf("%s: usable %v, ended %v, failed %v, fatal %v, %s: %s", name, got.usable,
				got.ended, got.failed, got.fatal, got.reason, got.message)
		}
	}
}

// TestLateForItsNetwork: the reason of a sandbox whose pod has no network when its time is up.
func TestLateForItsNetwork(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		ready  corev1.ConditionStatus // to start containers
		change func(pod *corev1.Pod)
		want   string
	}{
		"no network": {corev1.ConditionFalse, func(*corev1.Pod) {}, v1alpha1.ReasonNetworkError},
		"a slow image": {corev1.ConditionTrue, func(*corev1.Pod) {},
			v1alpha1.ReasonProvisionTimeout},
		"perhaps a volume": {corev1.ConditionFalse, func(pod *corev1.Pod) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data",
				VolumeSource: corev1.VolumeSource{HostPath: new(corev1.HostPathVolumeSource)}})
		}, v1alpha1.ReasonProvisionTimeout},
		"perhaps the runtime": {corev1.ConditionFalse, func(pod *corev1.Pod) {
			pod.Spec.RuntimeClassName = new(string)
		}, v1alpha1.ReasonProvisionTimeout},
		"no node": {corev1.ConditionFalse, func(pod *corev1.Pod) { pod.Spec.NodeName = "" },
			v1alpha1.ReasonProvisionTimeout},
	} {
		pod := new(corev1.Pod)
		pod.Spec.NodeName = "n"
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "image"}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "execd",
			VolumeSource: corev1.VolumeSource{EmptyDir: new(corev1.EmptyDirVolumeSource)}}}
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers,
			Status: test.ready}}
		test.change(pod)
		b := new(v1alpha1.BatchSandbox)
		b.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		b.Spec.Replicas, b.Spec.ProvisionTimeoutSeconds = 1, new(int32)
		status := decide(b, observed{now: now, sandboxes: []sandbox{observe(pod)}})
		degraded := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDegraded)
		if degraded == nil || degraded.Reason != test.want || status.Outcomes != "F" {
			t.Errorf("%s: %+v, want %s", name, status, test.want)
		}
	}
}

// TestFailedBeforeReady: which pods another one may do better than, going by what a kubelet
// reports.
func TestFailedBeforeReady(t *testing.T) {
	ended := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128,
			Reason: reason, Message: message}}
	}
	canceled := ended("StartError",
		"failed to start containerd task \"0a1b\": context canceled: unknown")
	killed := ended("StartError",
		"failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown")
	missing := ended("StartError",
		"failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "+
			"unable to start container process: exec: \"nothing\": executable file not found in $PATH: unknown")
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	for name, test := range map[string]struct {
		phase     corev1.PodPhase
		podReason string
		init      corev1.ContainerState
		main      corev1.ContainerState
		sidecar   corev1.ContainerState
		change    func(pod *corev1.Pod)
		recorded  bool
		want      string // a part of the message; empty: it is not
	}{
		"the init container was cut short": {phase: corev1.PodFailed, init: canceled,
			main: waits, want: "container init did not start"},
		"the main container was cut short": {phase: corev1.PodFailed, main: canceled,
			want: "container main did not start: failed to start"},
		"even when its address is known": {phase: corev1.PodFailed, main: canceled,
			recorded: true, want: "main"},
		"a container beside it was cut short": {phase: corev1.PodRunning, main: runs,
			sidecar: canceled, want: "container sidecar"},
		"the kubelet starts it again": {phase: corev1.PodRunning, main: canceled,
			change: func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }},
		"the kubelet starts the sidecar again": {phase: corev1.PodPending, init: canceled,
			change: func(pod *corev1.Pod) {
				pod.Spec.InitContainers[0].RestartPolicy = new(
					corev1.ContainerRestartPolicy)
			}},
		"about to be made again": {phase: corev1.PodFailed, init: waits, main: waits,
			want: "container init did not start", change: func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses[0].LastTerminationState = canceled
			}},
		"about to be made again while others run": {phase: corev1.PodRunning, main: waits,
			sidecar: runs, change: func(pod *corev1.Pod) {
				pod.Status.ContainerStatuses[0].LastTerminationState = canceled
			}},
		"it ran before": {phase: corev1.PodFailed, main: canceled, change: func(pod *corev1.Pod) {
			pod.Status.ContainerStatuses[0].LastTerminationState = ended("Unknown", "")
		}},
		"an init container that was made twice": {phase: corev1.PodFailed, init: canceled,
			main: waits, want: "container init", change: func(pod *corev1.Pod) {
				pod.Status.InitContainerStatuses[0].RestartCount, pod.Status.InitContainerStatuses[0].LastTerminationState = 1, ended("Unknown", "")
			}},
		"no such program": {phase: corev1.PodFailed, main: missing},
		"the shim was killed": {phase: corev1.PodFailed, main: killed,
			want: "signal: killed"},
		"the init container's end is unknown": {phase: corev1.PodFailed,
			init: ended("Unknown", ""), main: waits, want: "container init"},
		"the main container's end is unknown": {phase: corev1.PodFailed,
			main: ended("Unknown", "")},
		"it says so itself": {phase: corev1.PodFailed,
			main: ended("Error", "context canceled")},
		"turned away by the node": {phase: corev1.PodFailed,
			podReason: "OutOfcpu", want: "OutOfcpu"},
		"turned away without a word": {phase: corev1.PodFailed,
			want: "ended before a container ran"},
		"evicted before it ran": {phase: corev1.PodFailed, podReason: "Evicted",
			main: waits, want: "evicted"},
		"evicted, and it is unknown whether it ran": {phase: corev1.PodFailed, podReason: "Evicted",
			recorded: true},
		"evicted after it ran": {phase: corev1.PodFailed, podReason: "Evicted",
			main: ended("Error", "")},
		"stopped by its deadline": {phase: corev1.PodFailed,
			podReason: "DeadlineExceeded"},
		"on its way": {phase: corev1.PodPending, main: waits},
		"usable": {phase: corev1.PodRunning, main: runs,
			sidecar: runs},
	} {
		pod := new(corev1.Pod)
		pod.Spec.NodeName, pod.Spec.RestartPolicy = "n", corev1.RestartPolicyNever
		pod.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		pod.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "sidecar"}}
		pod.Status.Phase, pod.Status.Reason = test.phase, test.podReason
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init",
			State: test.init}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: test.main},
			{Name: "sidecar", State: test.sidecar}}
		if test.change != nil {
			test.change(pod)
		}
		reason, message := failedBeforeReady(pod, test.recorded)
		if (reason == "") != (test.want == "") || !strings.Contains(message, test.want) {
			t.Errorf("%s: %q: %q, want %q", name, reason, message, test.want)
		}
	}
}

// TestNumberOf: which sandbox a pod says that it is.
func TestNumberOf(t *testing.T) {
	const none = -1
	for shard, want := range map[string]int{"0": 0, "9999": 9999, "10000": none,
		"999999999": none, "-1": none, "00": none, "": none} {
		pod := new(corev1.Pod)
		pod.Name = "b-" + shard
		pod.Labels = map[string]string{v1alpha1.LabelBatch: "b", v1alpha1.LabelShard: shard}
		if number, ok := numberOf(pod); ok != (want != none) || ok && number != want {
			t.Errorf("%q is %d, %v", shard, number, ok)
		}
	}
}
