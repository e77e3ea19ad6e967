package batch

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// deleteUnwanted deletes the pods of sandboxes that have ended on record, of numbers that are not
// wanted any more, and of a batch that stops; and those that failed before they were ready, so that
// the next step makes others.
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
