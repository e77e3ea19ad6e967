package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// advance takes a batch that has not ended one step further: first what gives it pods, then the
// status, which says what is known now, and only then what takes pods away. So an end is on record
// before anything acts on it, and a renewal that came first wins.
func (r *Reconciler) advance(ctx context.Context,
	b *v1alpha1.BatchSandbox) (reconcile.Result, error) {
	var due deadline
	now := r.Now()
	reason, _ := stopReason(b, now)
	stopping := reason != ""

	v, err := r.look(ctx, b)
	if err != nil {
		return reconcile.Result{}, err
	}
	refused := make(map[int]refusal)
	if !stopping {
		if refused, err = r.provide(ctx, b, v, &due); err != nil {
			return reconcile.Result{}, err
		}
	}
	at, err := r.situation(ctx, b, v, refused, stopping)
	if err != nil {
		return reconcile.Result{}, err
	}
	at.now = now
	r.toggle(b, &at, stopping, &due)

	after := decide(b, at)
	if err := r.write(ctx, b, after, now, &due); err != nil {
		return reconcile.Result{}, err
	}
	// From here on the status is what is on record.
	if err := r.takeAway(ctx, b, v, &at); err != nil {
		return reconcile.Result{}, err
	}
	if at.lack != nil || b.Status.Phase == v1alpha1.PhaseStopping {
		due.in(now, lookAgain)
	}
	if b.Spec.ExpireTime != nil && !stopping {
		due.at(b.Spec.ExpireTime.Time)
	}
	for i := range at.sandboxes {
		if again := at.sandboxes[i].recreateAt; again.After(now) {
			due.at(again)
		}
	}
	for _, pod := range v.pods {
		if pod != nil && pod.DeletionTimestamp != nil && !abandoned(pod, now) {
			due.at(abandonedAt(pod))
		}
	}
	if deadline, ok := provisionDeadline(b); ok {
		due.at(deadline)
	}
	return due.result(r.Now()), nil
}

// deadline is the earliest time at which a batch must be looked at again.
type deadline struct{ time time.Time }

func (d *deadline) at(t time.Time) {
	if d.time.IsZero() || t.Before(d.time) {
		d.time = t
	}
}

func (d *deadline) in(now time.Time, wait time.Duration) { d.at(now.Add(wait)) }

func (d *deadline) result(now time.Time) reconcile.Result {
	if d.time.IsZero() {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(d.time.Sub(now), time.Millisecond)}
}

// view is what the cache has of a batch's pods.
type view struct {
	// by number, nil where there is none; from a template they may reach beyond spec.replicas
	pods  []*corev1.Pod
	names []string // by number: the allocation, for a batch with a pool
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

func (r *Reconciler) look(ctx context.Context, b *v1alpha1.BatchSandbox) (*view, error) {
	v := new(view)
	if b.Spec.PoolRef != "" {
		return v, r.lookAllocation(ctx, b, v)
	}
	var list corev1.PodList
	if err := r.client.List(ctx, &list, client.InNamespace(b.Namespace),
		client.MatchingFields{indexOwner: string(b.UID)}); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if number, ok := numberOf(&list.Items[i]); ok {
			v.set(number, &list.Items[i])
		}
	}
	return v, nil
}

func (r *Reconciler) lookAllocation(ctx context.Context, b *v1alpha1.BatchSandbox, v *view) error {
	allocation, err := b.Allocation()
	if err != nil {
		return err
	}
	v.names, v.pods = allocation.Pods, nil
	for number, name := range v.names {
		if name == "" {
			continue
		}
		pod := new(corev1.Pod)
		err := r.client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, pod)
		switch {
		case err == nil:
			v.set(number, pod)
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	return nil
}

// provide gives the batch the pods that it lacks, as far as there are any, and returns why some are
// refused.
func (r *Reconciler) provide(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	due *deadline) (map[int]refusal, error) {
	if b.Spec.PoolRef != "" {
		return r.allocate(ctx, b, v, due)
	}
	if !hasFinalizer(b) {
		changed := b.DeepCopy()
		changed.Finalizers = append(changed.Finalizers, v1alpha1.Finalizer)
		if err := r.client.Patch(ctx, changed,
			client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
			return nil, err
		}
		*b = *changed
	}
	var lacking []int
	for number := range int(b.Spec.Replicas) {
		if v.pod(number) == nil && !over(outcome(&b.Status, number)) && !known(b, number) {
			lacking = append(lacking, number)
		}
	}
	if len(lacking) == 0 {
		return map[int]refusal{}, nil
	}
	made, refused, err := r.create(ctx, b, lacking)
	if made > 0 && b.Status.Phase == "" {
		r.recordEvent(b, corev1.EventTypeNormal, "Created", "made %d pods, %s-0 to -%d", made,
			b.Name, b.Spec.Replicas-1)
	}
	return refused, err
}

// recreationTime is when a pod that came to nothing is replaced: at once the first time, then after
// as long as the batch has been at it already, so that a node which takes no pod is asked less and
// less often.
func recreationTime(b *v1alpha1.BatchSandbox, pod *corev1.Pod) time.Time {
	return pod.CreationTimestamp.Add(min(pod.CreationTimestamp.Sub(b.CreationTimestamp.Time),
		maxBackoff))
}

// known reports whether the record has a pod of the sandbox, so that one that is missing was there
// and is gone.
func known(b *v1alpha1.BatchSandbox, number int) bool {
	return number < len(b.Status.Addresses) && b.Status.Addresses[number] != ""
}

func (r *Reconciler) allocate(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	due *deadline) (map[int]refusal, error) {
	refused := make(map[int]refusal)
	var lacking []int
	for number := len(v.names); number < int(b.Spec.Replicas); number++ {
		if !b.Status.Ended(number) {
			lacking = append(lacking, number)
		}
	}
	if len(lacking) == 0 {
		return refused, nil
	}
	why := refusal{v1alpha1.ReasonResourceLimit,
		fmt.Sprintf("Pool %s has no pod ready", b.Spec.PoolRef), false}
	m, now := r.remember(b), r.Now()
	if wait := m.allocated.Add(allocateInterval).Sub(now); wait > 0 {
		due.in(now, wait)
	} else {
		missing, err := r.allocateNow(ctx, b)
		switch {
		case errors.Is(err, ErrNoPool):
			why = refusal{v1alpha1.ReasonPoolNotFound,
				fmt.Sprintf("there is no Pool %s in namespace %s", b.Spec.PoolRef, b.Namespace),
				false}
		case errors.Is(err, ErrInvalidPool):
			why = refusal{v1alpha1.ReasonInvalidTemplate, err.Error(), true}
		case errors.Is(err, ErrTooLarge):
			why = refusal{v1alpha1.ReasonResourceLimit, err.Error(), true}
		case err != nil:
			return nil, err
		default:
			if err := r.lookAllocation(ctx, b, v); err != nil {
				return nil, err
			}
			if missing > 0 {
				m.allocated = now
			} else if b.Status.Phase == "" {
				r.recordEvent(b, corev1.EventTypeNormal, "Allocated", "%d pods of Pool %s",
					b.Spec.Replicas, b.Spec.PoolRef)
			}
		}
	}
	for _, number := range lacking {
		if number >= len(v.names) {
			refused[number] = why
		}
	}
	return refused, nil
}

// allocateNow asks the pool, once it is known that its pods do for the batch.
func (r *Reconciler) allocateNow(ctx context.Context,
	b *v1alpha1.BatchSandbox) (missing int, err error) {
	if b.Spec.TaskTemplate != nil {
		var pool v1alpha1.Pool
		err := r.client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.PoolRef},
			&pool)
		switch {
		case apierrors.IsNotFound(err):
			return 0, ErrNoPool
		case err != nil:
			return 0, err
		}
		if err := v1alpha1.CheckTaskPod(pool.Spec.Template); err != nil {
			return 0, fmt.Errorf("pool %s: %w: %w", b.Spec.PoolRef, ErrInvalidPool, err)
		}
	}
	return r.Pools.Allocate(ctx, b)
}

// situation puts together what a decision depends on.
func (r *Reconciler) situation(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	refused map[int]refusal, stopping bool) (situation, error) {
	replicas := int(b.Spec.Replicas)
	at := situation{sandboxes: make([]sandbox, replicas), stopped: true}
	for _, pod := range v.pods {
		if pod != nil {
			at.existing++
			at.stopped = at.stopped && (terminal(pod) || abandoned(pod, r.Now()))
		}
	}
	for _, name := range v.names {
		at.stopped = at.stopped && name == ""
	}
	for number := range replicas {
		if over(outcome(&b.Status, number)) {
			continue
		}
		s := &at.sandboxes[number]
		pod := v.pod(number)
		why, isRefused := refused[number]
		switch {
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
			if at.lack == nil || why.invalid && !at.lack.invalid {
				at.lack = &why
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
	if at.stopped && (stopping || r.allOver(b, &at)) {
		unseen, err := r.hasUnseen(ctx, b, func(number int) bool { return v.pod(number) != nil })
		if err != nil {
			return at, err
		}
		at.stopped = !unseen
	}
	return at, r.sync(ctx, b, v, &at, stopping)
}

// allOver reports whether this may be the end of the last sandbox.
func (r *Reconciler) allOver(b *v1alpha1.BatchSandbox, at *situation) bool {
	deadline, hasDeadline := provisionDeadline(b)
	overdue := hasDeadline && !r.Now().Before(deadline)
	for number := range at.sandboxes {
		if s := &at.sandboxes[number]; !over(outcome(&b.Status, number)) && !s.ended && !s.fatal &&
			(s.usable || !overdue) {
			return false
		}
	}
	return true
}

// isLost reports whether the pod of a sandbox was there and is gone. The cache may be behind, so
// the API server is asked.
func (r *Reconciler) isLost(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	number int) (bool, error) {
	name := podName(b, number)
	if b.Spec.PoolRef != "" {
		if number >= len(v.names) {
			return false, nil
		}
		name = v.names[number]
	} else if !known(b, number) {
		return false, nil
	}
	if name == "" {
		return true, nil // given back, by a controller that exited before the letter was written
	}
	err := r.live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name},
		new(corev1.Pod))
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// sync brings the tasks to the pods and learns how they are.
func (r *Reconciler) sync(ctx context.Context, b *v1alpha1.BatchSandbox, v *view, at *situation,
	stopping bool) error {
	if b.Spec.TaskTemplate == nil || stopping {
		return nil
	}
	pods := make([]*corev1.Pod, len(at.sandboxes))
	for number := range at.sandboxes {
		if s := &at.sandboxes[number]; !s.ended && outcome(&b.Status, number) == lives {
			pods[number] = s.pod
		}
	}
	var err error
	if at.tasks, err = r.Tasks.Sync(ctx, b, pods); err != nil {
		return err
	}
	for number := range at.sandboxes {
		s, task := &at.sandboxes[number], at.tasks[number]
		if outcome(&b.Status, number) != lives || !s.usable || task.Ready ||
			task.Phase == TaskSucceeded || task.Phase == TaskFailed {
			continue
		}
		s.usable, s.reason, s.message = false, v1alpha1.ReasonContainerStarting,
			"its task is not ready: "+task.Message
	}
	return nil
}

// toggle freezes or thaws, when the spec has another state than the batch. It does not wait for
// that.
func (r *Reconciler) toggle(b *v1alpha1.BatchSandbox, at *situation, stopping bool, due *deadline) {
	phase := b.Status.Phase
	operation := ""
	switch {
	case stopping:
		r.freezer.forget(client.ObjectKeyFromObject(b))
	case b.Spec.Pause && (phase == v1alpha1.PhaseRunning || phase == v1alpha1.PhasePausing):
		operation = "freeze"
	case !b.Spec.Pause && (phase == v1alpha1.PhasePaused || phase == v1alpha1.PhaseResuming):
		operation = "thaw"
	}
	if operation == "" {
		return
	}
	m := r.remember(b)
	if wait := m.refused.Add(freezeInterval).Sub(at.now); wait > 0 {
		due.in(at.now, wait)
		return
	}
	var daemons []daemon
	for number := range at.sandboxes {
		if s := &at.sandboxes[number]; !b.Status.Ended(number) && !s.ended && s.pod != nil {
			daemons = append(daemons, daemon{number, s.pod.Status.PodIP, r.execdToken(b, s.pod)})
		}
	}
	at.frozen = r.freezer.do(b, operation, daemons)
	if at.frozen.err != nil {
		m.refused = at.now
		due.in(at.now, freezeInterval)
	}
}

// takeAway ends what the record says is over: sandboxes that have ended, numbers that are wanted no
// more, everything of a batch that stops; and the pods that came to nothing, so that the next step
// makes others.
func (r *Reconciler) takeAway(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	at *situation) error {
	stopping := b.Status.Phase == v1alpha1.PhaseStopping
	if stopping {
		if err := r.releaseAll(ctx, b); err != nil {
			return err
		}
	}
	var release []int
	for number, name := range v.names {
		if name != "" && !stopping &&
			(number >= int(b.Spec.Replicas) || over(outcome(&b.Status, number))) {
			release = append(release, number)
		}
	}
	if len(release) > 0 || !stopping && len(v.names) > int(b.Spec.Replicas) {
		if err := r.Pools.Release(ctx, b, release); err != nil {
			return err
		}
	}
	if b.Spec.PoolRef != "" {
		return nil
	}
	record := b.Spec.TTLSecondsAfterFinished != nil
	givesBack := b.Spec.TaskTemplate != nil &&
		b.Spec.TaskResourcePolicyWhenCompleted == v1alpha1.TaskRelease
	return each(len(v.pods), func(number int) error {
		pod := v.pods[number]
		switch {
		case pod == nil:
			return nil
		case number >= int(b.Spec.Replicas):
			return r.end(ctx, pod, false)
		case over(outcome(&b.Status, number)) && givesBack:
			return r.end(ctx, pod, false)
		case stopping || over(outcome(&b.Status, number)):
			if terminal(pod) {
				return nil
			}
			return r.end(ctx, pod, record)
		}
		s := &at.sandboxes[number]
		if s.recreateAt.IsZero() || s.recreateAt.After(at.now) || known(b, number) ||
			pod.DeletionTimestamp != nil {
			return nil
		}
		r.recordEvent(b, corev1.EventTypeWarning, "PodReplaced", "%s: %s", pod.Name, s.message)
		return r.end(ctx, pod, false)
	})
}

// releaseAll gives back every pod of the pool that the batch holds.
func (r *Reconciler) releaseAll(ctx context.Context, b *v1alpha1.BatchSandbox) error {
	allocation, err := b.Allocation()
	if err != nil {
		return err
	}
	var held []int
	for number, name := range allocation.Pods {
		if name != "" {
			held = append(held, number)
		}
	}
	if len(held) == 0 {
		return nil
	}
	return r.Pools.Release(ctx, b, held)
}
