package batch

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

var batchResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group,
	Resource: "batchsandboxes"}

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

// whyNone completes the refusal of a Pool that has no pod ready, when its status has the reason:
// the API server refuses its pods. A rule of the namespace will refuse the next ones too.
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

// allocateNow asks the pool for pods, after a check that its pods suit the batch.
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
