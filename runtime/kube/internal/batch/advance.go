package batch

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// advance takes the next step of a batch that has not ended: first it provides pods, then it writes
// the status, and only then it deletes pods. So an end is on record before anything acts on it, and
// an earlier renewal wins. Only an end for which the object has no room is acted on without a
// record.
func (r *reconciler) advance(ctx context.Context,
	b *v1alpha1.BatchSandbox) (reconcile.Result, error) {
	var due deadline
	now := r.Now()
	if err := r.passTimeout(ctx, b, now); err != nil {
		return reconcile.Result{}, err
	}
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
	r.follow(b, &at, stopping, &due)
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

// recreationTime is when a pod that failed before it was ready is replaced: at once the first time,
// then after as long as the batch has been at it already, so that a node which takes no pod is
// asked less and less often.
func recreationTime(b *v1alpha1.BatchSandbox, pod *corev1.Pod) time.Time {
	return pod.CreationTimestamp.Add(min(pod.CreationTimestamp.Sub(b.CreationTimestamp.Time),
		maxBackoff))
}
