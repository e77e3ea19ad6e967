package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// advance takes a batch that has not ended one step further: first what gives it pods, then the
// status, which says what is known now, and only then what takes pods away. So an end is on record
// before anything acts on it, and a renewal that came first wins. Only an end for which the object
// has no room goes on without a record.
func (r *reconciler) advance(ctx context.Context,
	b *v1alpha1.BatchSandbox) (reconcile.Result, error) {
	var due deadline
	now := r.Now()
	reason, _ := stopReason(b, now)
	stopping := reason != ""

	v, err := r.load(ctx, b)
	if err != nil {
		return reconcile.Result{}, err
	}
	refused := make(map[int]refusal)
	var failed error // is returned, so that this is repeated, after the rest is done
	if !stopping {
		refused, failed = r.provide(ctx, b, v, &due)
		if failed != nil && (refused == nil || apierrors.IsConflict(failed)) {
			return reconcile.Result{}, failed
		}
	}
	at, err := r.assess(ctx, b, v, refused, stopping)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.syncTasks(ctx, b, &at, stopping); err != nil {
		return reconcile.Result{}, err
	}
	r.syncClaim(b, &at, stopping)
	at.now = now
	r.toggle(b, &at, stopping, &due)

	after := decide(b, at)
	outcomes := b.Status.Outcomes
	switch err := r.write(ctx, b, after, now, &due); {
	case v1alpha1.IsTooLarge(err) && isEnd(after.Phase):
		// The end must not wait for room in etcd. It is not on record, so not in what is
		// remembered.
		b, failed = b.DeepCopy(), err
		b.Status = after
	case err != nil:
		return reconcile.Result{}, err
	}
	// From here on the status is what is on record.
	if b.Status.Outcomes != outcomes && at.tasks != nil {
		// The task of a sandbox that was given up must not be sent to its pod, which goes next.
		if _, err := r.Tasks.Sync(ctx, b, podsOfTasks(b, &at)); err != nil {
			return reconcile.Result{}, err
		}
	}
	if hasEnded(outcome(&b.Status, 0)) {
		r.Claims.Forget(b.Namespace, b.Name)
	}
	if err := r.deleteUnwanted(ctx, b, v, &at, &due); err != nil {
		return reconcile.Result{}, err
	}
	if at.missing != nil || b.Status.Phase == v1alpha1.PhaseStopping {
		due.in(now, resyncInterval)
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
		switch {
		case pod == nil:
		case pod.DeletionTimestamp != nil:
			if !abandoned(pod, now) {
				due.at(abandonedAt(pod))
			}
		case !terminal(pod):
			if until, asked := keptUntil(pod); asked && until.After(now) {
				due.at(until)
			}
		}
	}
	if deadline, ok := provisionDeadline(b); ok && deadline.After(now) {
		due.at(deadline)
	}
	result := due.result(r.Now())
	if failed != nil && result.RequeueAfter > 0 {
		// What is due must not wait for the error's pause, which grows.
		r.Enqueuer.enqueueAfter(b.Namespace, b.Name, result.RequeueAfter)
		return reconcile.Result{}, failed
	}
	return result, failed
}

var batchResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group,
	Resource: "batchsandboxes"}

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
	return reconcile.Result{RequeueAfter: min(max(d.time.Sub(now), time.Millisecond), clockInterval)}
}

// provide gives the batch the pods that it lacks, as far as there are any, and returns why some are
// refused. An error that comes with refusals is among them; one without leaves nothing to decide.
func (r *reconciler) provide(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	due *deadline) (map[int]refusal, error) {
	if b.Spec.PoolRef != "" {
		return r.allocate(ctx, b, v, due)
	}
	if !hasFinalizer(b) {
		changed := b.DeepCopy()
		changed.Finalizers = append(changed.Finalizers, v1alpha1.Finalizer)
		if err := r.client.Patch(ctx, changed,
			client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
			return nil, written(err)
		}
		*b = *changed
	}
	var lacking []int
	for number := range int(b.Spec.Replicas) {
		if v.pod(number) == nil && !podReleased(outcome(&b.Status, number)) && !known(b, number) {
			lacking = append(lacking, number)
		}
	}
	if len(lacking) == 0 {
		return map[int]refusal{}, nil
	}
	if b.Spec.Template == nil { // TrimBatch; the next try is on what the API server has
		return nil, apierrors.NewConflict(batchResource, b.Name, errors.New("the cache has no template"))
	}
	made, refused, err := r.create(ctx, b, lacking)
	if made > 0 && b.Status.Phase == "" {
		r.recordEvent(b, corev1.EventTypeNormal, "Created", "made %d pods, %s-0 to -%d", made,
			b.Name, b.Spec.Replicas-1)
	}
	return refused, err
}

// recreationTime is when a pod that failed before it was ready is replaced: at once the first time,
// then after as long as the batch has been at it already, so that a node which takes no pod is
// asked less and less often.
func recreationTime(b *v1alpha1.BatchSandbox, pod *corev1.Pod) time.Time {
	return pod.CreationTimestamp.Add(min(pod.CreationTimestamp.Sub(b.CreationTimestamp.Time),
		maxBackoff))
}

// known reports whether the record has a pod of the sandbox, so that one that is missing was there
// and is gone.
func known(b *v1alpha1.BatchSandbox, number int) bool {
	return number < len(b.Status.Addresses) && b.Status.Addresses[number] != ""
}

func (r *reconciler) allocate(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	due *deadline) (map[int]refusal, error) {
	refused := make(map[int]refusal)
	var lacking []int
	for number := range int(b.Spec.Replicas) {
		if b.Lacks(v.names, number) {
			lacking = append(lacking, number)
		}
	}
	if len(lacking) == 0 {
		return refused, nil
	}
	why := refusal{v1alpha1.ReasonResourceLimit,
		fmt.Sprintf("Pool %s has no pod ready", b.Spec.PoolRef), false}
	var failed error
	m, now := r.remember(b), r.Now()
	if wait := m.allocated.Add(allocateInterval).Sub(now); wait > 0 {
		due.in(now, wait)
	} else {
		missing, err := r.allocateNow(ctx, b)
		switch {
		case errors.Is(err, v1alpha1.ErrNoPool):
			why = refusal{v1alpha1.ReasonPoolNotFound,
				fmt.Sprintf("there is no Pool %s in namespace %s", b.Spec.PoolRef, b.Namespace),
				false}
		case errors.Is(err, v1alpha1.ErrPoolEnds):
			why = refusal{v1alpha1.ReasonPoolNotFound, err.Error(), true}
		case errors.Is(err, v1alpha1.ErrPoolTooSmall):
			why = refusal{v1alpha1.ReasonResourceLimit, err.Error(), true}
		case errors.Is(err, v1alpha1.ErrInvalidPool):
			why = refusal{v1alpha1.ReasonInvalidTemplate, err.Error(), true}
		case errors.Is(err, v1alpha1.ErrTooLarge):
			why = refusal{v1alpha1.ReasonResourceLimit, err.Error(), true}
		case err != nil:
			why = refusal{v1alpha1.ReasonProvisioning,
				fmt.Sprintf("Pool %s gives no pods: %v", b.Spec.PoolRef, err), false}
			failed = err
		default:
			if err := r.loadAllocation(ctx, b, v); err != nil {
				return nil, err
			}
			if missing > 0 {
				m.allocated = now
				why = r.whyNone(ctx, b, why)
			} else if b.Status.Phase == "" {
				r.recordEvent(b, corev1.EventTypeNormal, "Allocated", "%d pods of Pool %s",
					b.Spec.Replicas, b.Spec.PoolRef)
			}
		}
	}
	for _, number := range lacking {
		if number >= len(v.names) || v.names[number] == "" {
			refused[number] = why
		}
	}
	return refused, failed
}

// whyNone returns why a Pool has no pod ready, where it says so: the API server refuses its pods. A
// rule of the namespace will not take the next ones either.
func (r *reconciler) whyNone(ctx context.Context, b *v1alpha1.BatchSandbox, why refusal) refusal {
	var pool v1alpha1.Pool
	if r.client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.PoolRef}, &pool,
		client.UnsafeDisableDeepCopy) != nil {
		return why
	}
	ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.NotServed ||
		ready.ObservedGeneration != pool.Generation {
		return why
	}
	why.message += ": " + ready.Message
	if pool.Status.Total > 0 {
		return why // these may come back
	}
	switch {
	case neverFits(ready.Message):
		why.invalid = true
	case byRule.MatchString(ready.Message):
		why.reason, why.invalid = v1alpha1.ReasonInvalidTemplate, true
	}
	return why
}

// allocateNow asks the pool, once it is known that its pods do for the batch.
func (r *reconciler) allocateNow(ctx context.Context,
	b *v1alpha1.BatchSandbox) (missing int, err error) {
	check := v1alpha1.CheckTaskPod
	if b.Spec.Claim != nil {
		check = v1alpha1.CheckClaimPod
	}
	if b.Spec.TaskTemplate != nil || b.Spec.Claim != nil {
		var pool v1alpha1.Pool
		err := r.client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.PoolRef},
			&pool)
		switch {
		case apierrors.IsNotFound(err):
			return 0, v1alpha1.ErrNoPool
		case err != nil:
			return 0, err
		}
		if err := check(pool.Spec.Template); err != nil {
			return 0, fmt.Errorf("pool %s: %w: %w", b.Spec.PoolRef, v1alpha1.ErrInvalidPool, err)
		}
	}
	return r.Pools.Allocate(ctx, b)
}

// toggle freezes or thaws, when the phase on record says that this goes on. It does not wait for
// that.
func (r *reconciler) toggle(b *v1alpha1.BatchSandbox, at *observed, stopping bool, due *deadline) {
	phase := b.Status.Phase
	operation := ""
	switch {
	case stopping:
		r.freezer.forget(client.ObjectKeyFromObject(b))
	case b.Spec.Pause && phase == v1alpha1.PhasePausing:
		operation = "freeze"
	case !b.Spec.Pause && phase == v1alpha1.PhaseResuming:
		operation = "thaw"
	}
	m := r.remember(b)
	if operation == "" {
		m.refusing = nil
		return
	}
	if wait := m.refused.Add(freezeInterval).Sub(at.now); wait > 0 {
		due.in(at.now, wait)
		return
	}
	var daemons []daemon
	for number := range at.sandboxes {
		s := &at.sandboxes[number]
		switch {
		case b.Status.Ended(number) || s.ended:
		case operation == "freeze" && (s.pod == nil || s.pod.Status.PodIP == ""):
			// It would run in a batch that is Paused once it has a pod.
			at.frozen = freezing{tried: true, err: fmt.Errorf("sandbox %d has no pod yet", number)}
			due.in(at.now, freezeInterval)
			return
		case s.pod != nil && s.pod.Status.PodIP != "": // without one it has not been frozen
			daemons = append(daemons, daemon{number, s.pod.UID, s.pod.Status.PodIP,
				r.execdToken(b, number, s.pod)})
		}
	}
	at.frozen = r.freezer.do(b, operation, daemons)
	if at.frozen.err != nil {
		m.refused = at.now
		due.in(at.now, freezeInterval)
	}
	if at.frozen.tried {
		m.refusing = giveUp(at, m.refusing)
	}
}

// giveUp makes the sandboxes failed whose execds have answered for stuckAfter that they do not
// freeze or thaw. It takes and returns since when each answers so, by its number. One that does not
// answer is waited for: its node may come back.
func giveUp(at *observed, before map[int]time.Time) map[int]time.Time {
	since := make(map[int]time.Time)
	for number, err := range at.frozen.refused {
		since[number] = at.now
		if earlier, ok := before[number]; ok {
			since[number] = earlier
		}
		if at.now.Sub(since[number]) > stuckAfter {
			s := &at.sandboxes[number]
			s.usable, s.ended, s.failed = false, true, true
			s.reason, s.message = v1alpha1.ReasonContainerError, err.Error()
		}
	}
	return since
}

// deleteUnwanted ends what the record says is over: sandboxes that have ended, numbers that are
// wanted no more, everything of a batch that stops; and the pods that failed before they were
// ready, so that the next step makes others.
func (r *reconciler) deleteUnwanted(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	at *observed, due *deadline) error {
	stopping := b.Status.Phase == v1alpha1.PhaseStopping
	switch {
	case b.Spec.PoolRef != "" && b.Status.Phase.Finished():
		return r.releaseAll(ctx, b)
	case b.Spec.PoolRef != "":
		return r.giveBack(ctx, b, v, stopping, at.now, due)
	}
	record := b.Spec.TTLSecondsAfterFinished != nil
	givesBack := b.Spec.TaskTemplate != nil &&
		b.Spec.TaskResourcePolicyWhenCompleted == v1alpha1.TaskRelease
	return each(len(v.pods), func(number int) error {
		pod := v.pods[number]
		switch {
		case pod == nil:
			return nil
		case number >= int(b.Spec.Replicas) || outcome(&b.Status, number) == outcomeReleased:
			return r.end(ctx, pod, false)
		case hasEnded(outcome(&b.Status, number)) && givesBack:
			return r.end(ctx, pod, false)
		case stopping || hasEnded(outcome(&b.Status, number)):
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

// giveBack returns pods to the Pool: those that deleteUnwanted ends, all when the batch stops. The
// allocation names a pod until everything of its sandbox has ended: that it has not is on record
// there alone. What has ended of a batch that stops is written off with its end, in one write.
func (r *reconciler) giveBack(ctx context.Context, b *v1alpha1.BatchSandbox, v *view,
	stopping bool, now time.Time, due *deadline) error {
	var retire, release []int
	for number, name := range v.names {
		if name == "" || !stopping && number < int(b.Spec.Replicas) &&
			!podReleased(outcome(&b.Status, number)) {
			continue
		}
		switch pod := v.pod(number); {
		case pod == nil || !r.runs(b, pod):
			release = append(release, number)
		case pod.DeletionTimestamp == nil:
			retire = append(retire, number)
		}
	}
	if len(retire) > 0 {
		if err := r.Pools.Retire(ctx, b, retire); err != nil {
			return err
		}
	}
	last := len(v.names) - 1
	if stopping ||
		len(release) == 0 && (last < int(b.Spec.Replicas) || v.names[last] != "") {
		return nil
	}
	m := r.remember(b)
	if wait := m.released.Add(statusInterval).Sub(now); wait > 0 {
		due.in(now, wait)
		return nil
	}
	m.released = now
	return written(r.Pools.Release(ctx, b, release))
}

// releaseAll gives back every pod of the pool that the batch holds.
func (r *reconciler) releaseAll(ctx context.Context, b *v1alpha1.BatchSandbox) error {
	if b.Spec.PoolRef == "" {
		return nil
	}
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
	return written(r.Pools.Release(ctx, b, held))
}
