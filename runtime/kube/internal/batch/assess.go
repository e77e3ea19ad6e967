package batch

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// view is what the cache has of a batch's pods: these are the cache's own, and must not be changed.
type view struct {
	// by number, nil where there is none; from a template they may reach beyond spec.replicas
	pods  []*corev1.Pod
	names []string // by number: the allocation, for a batch with a pool
	// by number: the allocation names a pod that is not the batch's. It is not among the pods
	foreign map[int]bool
}

func (v *view) pod(number int) *corev1.Pod {
	if number < len(v.pods) {
		return v.pods[number]
	}
	return nil
}

func (v *view) set(number int, pod *corev1.Pod) {
	for len(v.pods) <= number {
		v.pods = append(v.pods, nil)
	}
	v.pods[number] = pod
}

// load reads the pods of a batch: those that it owns, or those that are allocated to it.
func (r *reconciler) load(ctx context.Context, b *v1alpha1.BatchSandbox) (*view, error) {
	v := new(view)
	if b.Spec.PoolRef != "" {
		return v, r.loadAllocation(ctx, b, v)
	}
	pods, err := r.owned(ctx, b)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if number, ok := numberOf(pod); ok {
			v.set(number, pod)
		}
	}
	return v, nil
}

// owned returns the pods that were made from a batch's template, as the cache has them: they must
// not be changed.
func (r *reconciler) owned(ctx context.Context, b *v1alpha1.BatchSandbox) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := r.client.List(ctx, &list, client.InNamespace(b.Namespace),
		client.MatchingFields{indexOwner: string(b.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

func (r *reconciler) loadAllocation(ctx context.Context, b *v1alpha1.BatchSandbox, v *view) error {
	allocation, err := b.Allocation()
	if err != nil {
		return err
	}
	v.names, v.pods, v.foreign = allocation.Pods, nil, make(map[int]bool)
	for number, name := range v.names {
		if name == "" {
			continue
		}
		holds, err := r.Pools.Holds(ctx, b, name)
		if err != nil {
			return err
		}
		if !holds {
			v.foreign[number] = true
			continue
		}
		pod := new(corev1.Pod)
		err = r.client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, pod,
			client.UnsafeDisableDeepCopy)
		switch {
		case err == nil && pod.Labels[v1alpha1.LabelPool] != b.Spec.PoolRef:
			v.foreign[number] = true
		case err == nil:
			v.set(number, pod)
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	return nil
}

// assess puts together what a decision depends on, but for the tasks.
func (r *reconciler) assess(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	refused map[int]refusal, stopping bool) (observed, error) {
	replicas := int(b.Spec.Replicas)
	at := observed{sandboxes: make([]sandbox, replicas), stopped: true}
	for _, pod := range v.pods {
		if pod == nil {
			continue
		}
		at.existing++
		if keeps(b, pod) {
			at.kept++
		}
		switch {
		case !r.runs(b, pod):
		case abandoned(pod, r.Now()):
			at.unreachableNode = cmp.Or(at.unreachableNode, pod.Spec.NodeName)
		default:
			at.stopped = false
		}
	}
	at.held = make([]bool, max(len(v.pods), len(v.names)))
	for number := range at.held {
		at.held[number] = v.pod(number) != nil || number < len(v.names) && v.names[number] != ""
	}
	for number := range replicas {
		if hasEnded(outcome(&b.Status, number)) {
			continue
		}
		s := &at.sandboxes[number]
		if outcome(&b.Status, number) == outcomeReleased {
			s.reason, s.message = v1alpha1.ReasonProvisioning,
				"waits until the pod that had the number before is given back"
			continue
		}
		pod := v.pod(number)
		why, isRefused := refused[number]
		switch {
		case v.foreign[number]:
			s.ended, s.failed = true, true
			s.reason, s.message = v1alpha1.ReasonRemovedExternally, fmt.Sprintf(
				"the annotation %s names the pod %s, which is not this batch's",
				v1alpha1.AnnotationAllocation, v.names[number])
		case pod != nil && pod.DeletionTimestamp != nil && b.Spec.PoolRef == "" &&
			!known(b, number) && !terminal(pod):
			s.reason, s.message = v1alpha1.ReasonProvisioning,
				"waits for the end of the pod that had the number before"
		case pod != nil:
			*s = observe(pod)
			s.scheduled = s.scheduled || b.Spec.PoolRef != ""
			if reason, message := failedBeforeReady(pod, known(b, number)); reason != "" &&
				b.Spec.PoolRef == "" {
				*s = sandbox{recreateAt: recreationTime(b, pod), reason: reason,
					message: message + "; its pod is recreated"}
			}
		case isRefused:
			s.reason, s.message, s.fatal = why.reason, why.message, why.invalid
			if at.missing == nil || why.invalid && !at.missing.invalid {
				at.missing = &why
			}
		default:
			lost, err := r.isLost(ctx, b, v, number)
			if err != nil {
				return at, err
			}
			s.reason, s.message = v1alpha1.ReasonProvisioning, "its pod is being made"
			if lost {
				s.ended, s.failed = true, true
				s.reason, s.message = v1alpha1.ReasonRemovedExternally,
					"its pod is gone, and not by the controller"
			}
		}
	}
	if at.stopped && (stopping || r.allEnded(b, &at)) {
		unseen, err := r.hasUnseen(ctx, b, v)
		if err != nil {
			return at, err
		}
		at.stopped = !unseen
	}
	return at, nil
}

// keeps reports whether a pod stays after the end of its batch: it has ended, and has the log.
func keeps(b *v1alpha1.BatchSandbox, pod *corev1.Pod) bool {
	return b.Spec.PoolRef == "" && pod.DeletionTimestamp == nil && terminal(pod)
}

// runs reports whether something of a sandbox may run in its pod.
func (r *reconciler) runs(b *v1alpha1.BatchSandbox, pod *corev1.Pod) bool {
	return !terminal(pod) && (b.Spec.PoolRef == "" || !r.Pools.Ended(pod))
}

// allEnded reports whether this may be the end of the last sandbox.
func (r *reconciler) allEnded(b *v1alpha1.BatchSandbox, at *observed) bool {
	deadline, hasDeadline := provisionDeadline(b)
	overdue := hasDeadline && !r.Now().Before(deadline)
	for number := range at.sandboxes {
		if s := &at.sandboxes[number]; !hasEnded(outcome(&b.Status, number)) && !s.ended && !s.fatal &&
			(s.usable || !overdue) {
			return false
		}
	}
	return true
}

// isLost reports whether the pod of a sandbox was there and is gone. The cache may be behind, so
// the API server is asked.
func (r *reconciler) isLost(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	number int) (bool, error) {
	name := podName(b, number)
	if b.Spec.PoolRef != "" {
		if number >= len(v.names) || v.names[number] == "" { // lost if the annotation was edited
			return known(b, number) || outcome(&b.Status, number) != outcomeActive, nil
		}
		name = v.names[number]
	} else if !known(b, number) {
		return false, nil
	}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name},
		new(corev1.Pod))
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// syncTasks brings the tasks to the pods and adds their states to at.
func (r *reconciler) syncTasks(ctx context.Context, b *v1alpha1.BatchSandbox, at *observed,
	stopping bool) error {
	if b.Spec.TaskTemplate == nil {
		return nil
	}
	if stopping { // no task is sent to a pod that is about to go
		r.Tasks.Forget(b.Namespace, b.Name)
		return nil
	}
	var err error
	if at.tasks, err = r.Tasks.Sync(ctx, b, podsOfTasks(b, at)); err != nil {
		return err
	}
	for number := range at.sandboxes {
		s, task := &at.sandboxes[number], &at.tasks[number]
		if outcome(&b.Status, number) != outcomeActive || task.ended() {
			continue
		}
		if how := executorEnd(s); how != "" {
			*task = TaskState{Phase: TaskFailed, Reason: reasonExecutorLost, Message: how}
		}
		if !s.usable || task.Ready || task.ended() {
			continue
		}
		s.usable, s.reason, s.message = false, v1alpha1.ReasonContainerStarting,
			"its task is not ready: "+task.Message
	}
	return nil
}

// syncClaim has the pod of a sandbox claimed that waits for that, and adds to at how far
// that is. A batch that was Running once has its pod for good.
func (r *reconciler) syncClaim(b *v1alpha1.BatchSandbox, at *observed, stopping bool) {
	if b.Spec.Claim == nil {
		return
	}
	phase := b.Status.Phase
	if stopping || phase != "" && phase != v1alpha1.PhasePending || len(at.sandboxes) != 1 ||
		at.sandboxes[0].pod == nil || at.sandboxes[0].ended || outcome(&b.Status, 0) != outcomeActive {
		r.Claims.Forget(b.Namespace, b.Name)
		return
	}
	s := &at.sandboxes[0]
	switch state := r.Claims.Sync(b, s.pod); {
	case state.Done:
	case state.Failed:
		s.usable, s.ended, s.failed = false, true, true
		s.reason, s.message = state.Reason, state.Message
	default:
		s.usable, s.reason, s.message = false, v1alpha1.ReasonContainerStarting, state.Message
	}
}

// podsOfTasks returns the pods whose tasks are followed, by number: those of the sandboxes that
// live.
func podsOfTasks(b *v1alpha1.BatchSandbox, at *observed) []*corev1.Pod {
	pods := make([]*corev1.Pod, len(at.sandboxes))
	for number := range at.sandboxes {
		if s := &at.sandboxes[number]; !s.ended && outcome(&b.Status, number) == outcomeActive {
			pods[number] = s.pod
		}
	}
	return pods
}

// reasonExecutorLost is tasks.ReasonExecutorLost.
const reasonExecutorLost = "EXECUTOR_LOST"

// executorEnd returns how the task-executor's container ended that is not started again in a
// sandbox which goes on: its tasks ended with it. It is empty when there is no such end.
func executorEnd(s *sandbox) string {
	if s.pod == nil || s.ended {
		return ""
	}
	executor := v1alpha1.TaskExecutor(&s.pod.Spec)
	status := containerStatus(s.pod.Status.ContainerStatuses, v1alpha1.ContainerTaskExecutor)
	if executor == nil || executor.RestartPolicy != nil || status == nil ||
		status.State.Terminated == nil || restarts(s.pod, status.State.Terminated) {
		return ""
	}
	_, _, how := exit(status.Name, status.State.Terminated)
	return how
}
