package batch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// sandbox is the state of one sandbox as its pod, or the lack of one, shows it.
type sandbox struct {
	pod       *corev1.Pod
	scheduled bool // the pod is on a node, or comes from a pool
	// its readiness probe says so, and its task, if it has one, is ready or has ended
	usable  bool
	address string

	ended  bool // nothing of it runs any more, or soon nothing will
	failed bool // it ended by an error

	// When it gets another pod, because its own failed before the sandbox could be used
	// (failedBeforeReady); zero where it did not.
	recreateAt time.Time

	// Why it is not usable, or how it ended. fatal is set where waiting cannot help.
	fatal   bool
	reason  string
	message string
}

// observe returns the state that a pod shows. It uses neither the clock nor the batch's past.
func observe(pod *corev1.Pod) sandbox {
	s := sandbox{pod: pod, scheduled: pod.Spec.NodeName != "", address: pod.Status.PodIP}
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed:
		s.ended = true
		if how := disruption(pod); how != "" && pod.Status.Phase == corev1.PodFailed {
			s.failed, s.reason, s.message = true, v1alpha1.ReasonRemovedExternally, how
			return s
		}
		s.failed, s.reason, s.message = ending(pod)
		return s
	}
	if pod.DeletionTimestamp != nil {
		s.ended, s.failed = true, true
		s.reason, s.message = v1alpha1.ReasonRemovedExternally,
			fmt.Sprintf("pod %s is being deleted, and not by the controller", pod.Name)
		if how := disruption(pod); how != "" {
			s.message = how
		}
		if evictedByTaint(pod) {
			s.message = fmt.Sprintf(
				"pod %s is being deleted because of a taint of its node %s: the node does not answer, or takes no more pods", pod.Name, pod.Spec.NodeName)
		}
		return s
	}
	main := mainContainer(pod)
	if status := containerStatus(pod.Status.ContainerStatuses, main.Name); status != nil &&
		status.State.Terminated != nil && !restarts(pod, status.State.Terminated) {
		s.ended = true
		s.failed, s.reason, s.message = exit(status.Name, status.State.Terminated)
		return s
	}
	if ready(pod) {
		s.usable = true
		s.reason = v1alpha1.ReasonContainerRunning
		return s
	}
	s.reason, s.message, s.fatal = waiting(pod, main)
	return s
}

// disruptions are the ways in which a cluster takes a pod away, by the reason of the condition that
// it sets before; what a pod's node does itself is in the pod's status.
var disruptions = map[string]string{
	"EvictionByEvictionAPI": "was evicted from node %s, as a drain of the node does",
	"PreemptionByScheduler": "was removed from node %s for a pod of a higher priority",
	"DeletionByPodGC":       "was removed because its node %s is gone",
}

// disruption returns how the cluster took a pod away before its main container ended, empty when it
// did not.
func disruption(pod *corev1.Pod) string {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			disruptions[c.Reason] != ""
	})
	if i < 0 {
		return ""
	}
	condition := &pod.Status.Conditions[i]
	status := containerStatus(pod.Status.ContainerStatuses, mainContainer(pod).Name)
	if status != nil && status.State.Terminated != nil && // in whole seconds
		status.State.Terminated.FinishedAt.Time.Before(condition.LastTransitionTime.Truncate(time.Second)) {
		return "" // it had ended by itself
	}
	how := fmt.Sprintf("pod %s "+disruptions[condition.Reason], pod.Name, pod.Spec.NodeName)
	if condition.Message != "" {
		how += ": " + condition.Message
	}
	return how
}

// mainContainer is the one whose end ends the sandbox: the one that kubectl takes by default, else
// the first that is not the task-executor's.
func mainContainer(pod *corev1.Pod) *corev1.Container {
	name := pod.Annotations[v1alpha1.AnnotationMainContainer]
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name != v1alpha1.ContainerTaskExecutor {
			return &pod.Spec.Containers[i]
		}
	}
	return &pod.Spec.Containers[0]
}

func containerStatus(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	i := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &statuses[i]
}

// restarts reports whether the kubelet starts a container again that ended so.
func restarts(pod *corev1.Pod, end *corev1.ContainerStateTerminated) bool {
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return end.ExitCode != 0
	default:
		return true
	}
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ending returns how a pod ended whose phase says that it did.
func ending(pod *corev1.Pod) (failed bool, reason, message string) {
	switch pod.Status.Reason {
	case "DeadlineExceeded":
		return true, v1alpha1.ReasonExpired,
			"the pod was active for longer than its activeDeadlineSeconds"
	case "Evicted":
		return true, v1alpha1.ReasonResourceLimit, "the node evicted the pod: " + pod.Status.Message
	case "NodeLost", "NodeShutdown", "Terminated", "Preempting":
		return true, v1alpha1.ReasonRemovedExternally,
			strings.TrimSpace(pod.Status.Reason + ": " + pod.Status.Message)
	}
	// The main container first, then whatever failed besides it. Sidecars are last: the kubelet
	// ends them with the pod.
	names := []string{mainContainer(pod).Name}
	var sidecars []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.RestartPolicy != nil {
			sidecars = append(sidecars, c.Name)
		} else {
			names = append(names, c.Name)
		}
	}
	names = append(names, sidecars...)
	statuses := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses)
	for i, name := range names {
		if end := lastEnd(pod, containerStatus(statuses, name)); end != nil &&
			(i == 0 || end.ExitCode != 0) {
			failed, reason, message = exit(name, end)
			return failed, fault(pod, name, reason), message
		}
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		return false, v1alpha1.ReasonEntrypointExited, "all containers ended with exit code 0"
	case strings.HasPrefix(pod.Status.Reason, "OutOf"):
		// the kubelet took no more: OutOfcpu, OutOfmemory, OutOfpods
		return true, v1alpha1.ReasonResourceLimit, pod.Status.Reason + ": " + pod.Status.Message
	}
	message = strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": ")
	if message == "" {
		message = "the pod ended before a container ran, and its node does not say why"
	}
	return true, v1alpha1.ReasonContainerError, message
}

// lastEnd returns how a container ended, nil when it did not. One that the kubelet was about to
// make again when the pod was found to have failed still waits for that.
func lastEnd(pod *corev1.Pod, status *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case status == nil:
		return nil
	case status.State.Terminated == nil && pod.Status.Phase == corev1.PodFailed:
		return status.LastTerminationState.Terminated
	}
	return status.State.Terminated
}

// exit returns how a container ended. Its message has the last lines of the log where
// terminationMessagePolicy asks for them.
func exit(container string,
	end *corev1.ContainerStateTerminated) (failed bool, reason, message string) {
	lines := strings.TrimSpace(end.Message)
	switch {
	case end.Reason == "OOMKilled":
		return true, v1alpha1.ReasonOOMKilled,
			fmt.Sprintf("container %s used more memory than its limit", container)
	case end.Reason == "StartError" || end.Reason == "ContainerCannotRun":
		return true, v1alpha1.ReasonContainerError,
			fmt.Sprintf("container %s did not start: %s", container, lines)
	}
	message = fmt.Sprintf("container %s ended with exit code %d", container, end.ExitCode)
	if end.Signal != 0 {
		message = fmt.Sprintf("container %s was ended by signal %d", container, end.Signal)
	}
	if lines != "" {
		message += ":\n" + lines
	}
	return end.ExitCode != 0, v1alpha1.ReasonEntrypointExited, message
}

// fault returns the reason of an error of a container: another one where it is the egress sidecar,
// without which nothing else of the pod starts.
func fault(pod *corev1.Pod, container, reason string) string {
	if container == v1alpha1.ContainerEgress &&
		containerStatus(pod.Status.InitContainerStatuses, container) != nil {
		return v1alpha1.ReasonNetworkError
	}
	return reason
}

// failedBeforeReady returns why a pod failed before it could be used, for a cause on the node that
// another pod may not have; empty when it did not. The caller says whether the record has an
// address of the pod.
//
// A kubelet that is killed interrupts the start of a container, a containerd that is killed does
// not record how an init container ended, and no component starts them again where the restart
// policy is Never; a pod with such a container can never have been ready. A node may also turn a
// pod away that the scheduler gave it. The kubelet then clears the pod's status, so that only the
// record shows whether it ran before.
func failedBeforeReady(pod *corev1.Pod, recorded bool) (reason, message string) {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		status := containerStatus(statuses, c.Name)
		end := lastEnd(pod, status)
		if end == nil || c.RestartPolicy != nil || restarts(pod, end) {
			continue
		}
		isInit := i < len(pod.Spec.InitContainers)
		if last := status.LastTerminationState.Terminated; !isInit && last != nil && last != end {
			continue // it was made a second time, and may have run the first time
		}
		if brokenOff(end) || isInit && unknown(end) {
			_, reason, message = exit(c.Name, end)
			return reason, message
		}
	}
	begun := slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil ||
			s.LastTerminationState.Terminated != nil || s.RestartCount > 0
	})
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "DeadlineExceeded" && !begun &&
		!recorded {
		_, reason, message = ending(pod)
	}
	return reason, message
}

// brokenOff reports whether a container did not start for a cause that is not its own, going by
// containerd's words: what it cannot run is judged by the OCI runtime, and everything else goes
// wrong on the way there.
func brokenOff(end *corev1.ContainerStateTerminated) bool {
	return end.Reason == "StartError" && (!strings.Contains(end.Message, "OCI runtime") ||
		strings.Contains(end.Message, "context canceled") ||
		strings.Contains(end.Message, "deadline exceeded") ||
		strings.Contains(end.Message, "signal: killed"))
}

// unknown reports whether it is unknown how a container ended: containerd was not running then, or
// has lost it.
func unknown(end *corev1.ContainerStateTerminated) bool {
	return end.Reason == "Unknown" || end.Reason == "ContainerStatusUnknown"
}

// waiting returns why a pod is not usable yet, and whether it never will be.
func waiting(pod *corev1.Pod, main *corev1.Container) (reason, message string, fatal bool) {
	if pod.Spec.NodeName == "" {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
				c.Reason == corev1.PodReasonUnschedulable {
				return v1alpha1.ReasonResourceLimit, "no node takes the pod: " + c.Message, false
			}
		}
		return v1alpha1.ReasonProvisioning, "waits for a node", false
	}
	egress := containerStatus(pod.Status.InitContainerStatuses, v1alpha1.ContainerEgress)
	if egress != nil && strings.Contains(pod.Status.PodIP, ":") {
		return v1alpha1.ReasonNetworkError, fmt.Sprintf("the egress sidecar refuses IPv6, "+
			"and the pod's primary address is %s: it needs an IPv4 address", pod.Status.PodIP), false
	}
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for i := range statuses {
		status := &statuses[i]
		if w := status.State.Waiting; w != nil {
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
				"RegistryUnavailable", "SignatureValidationFailed":
				return v1alpha1.ReasonImagePullError,
					fmt.Sprintf("container %s: %s", status.Name, w.Message), !passing(w)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return fault(pod, status.Name, v1alpha1.ReasonContainerError),
					fmt.Sprintf("container %s: %s", status.Name, w.Message), false
			case "CrashLoopBackOff":
				message := fmt.Sprintf("container %s ends again and again", status.Name)
				if last := status.LastTerminationState.Terminated; last != nil {
					_, _, how := exit(status.Name, last)
					message += ": " + how
				}
				return fault(pod, status.Name, v1alpha1.ReasonContainerError), message, false
			}
		}
	}
	if egress != nil && egress.State.Terminated != nil && egress.State.Terminated.ExitCode != 0 {
		_, _, how := exit(egress.Name, egress.State.Terminated)
		return v1alpha1.ReasonNetworkError, how, false
	}
	if status := containerStatus(pod.Status.ContainerStatuses, main.Name); status != nil &&
		status.State.Running != nil {
		return v1alpha1.ReasonContainerStarting, "runs, and is not proven usable yet", false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			return v1alpha1.ReasonImagePulling,
				fmt.Sprintf("node %s pulls the image %s or makes the container", pod.Spec.NodeName,
					main.Image), false
		}
	}
	return v1alpha1.ReasonContainerStarting,
		fmt.Sprintf("node %s makes the pod and its network", pod.Spec.NodeName), false
}

// lacksNetwork reports whether a node has not given a pod its namespaces and network, and there is
// no other cause for that in the pod: a volume that cannot be mounted, or a runtime class that the
// node does not have.
func lacksNetwork(pod *corev1.Pod) bool {
	mounts := slices.ContainsFunc(pod.Spec.Volumes,
		func(v corev1.Volume) bool { return v.EmptyDir == nil })
	return pod.Spec.NodeName != "" && !mounts && pod.Spec.RuntimeClassName == nil &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse
		})
}

// passing reports whether a failed pull may succeed when the kubelet tries again, going by the
// registry's words.
func passing(w *corev1.ContainerStateWaiting) bool {
	switch {
	case w.Reason == "InvalidImageName", w.Reason == "ErrImageNeverPull":
		return false
	case w.Reason == "ImagePullBackOff" && strings.HasSuffix(w.Message, `"`):
		return true // it ends with the image: before Kubernetes 1.32 only ErrImagePull has a cause
	}
	text := strings.ToLower(w.Message)
	return slices.ContainsFunc([]string{
		"timeout", "timed out", "deadline exceeded", "toomanyrequests", "too many requests", "429",
		"500 internal", "502 bad gateway",
		"503 service", "504 gateway", "unexpected eof", "connection reset",
		"temporary failure", "try again", "pull qps exceeded",
	}, func(word string) bool { return strings.Contains(text, word) })
}
