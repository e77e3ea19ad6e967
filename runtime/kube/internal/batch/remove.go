package batch

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// remove ends a batch that is being deleted, and removes its finalizer once it has no pods.
func (r *reconciler) remove(ctx context.Context,
	b *v1alpha1.BatchSandbox) (reconcile.Result, error) {
	r.freezer.forget(client.ObjectKeyFromObject(b))
	r.idleWatches.forget(client.ObjectKeyFromObject(b))
	r.forgetWork(b.Namespace, b.Name)
	if !hasFinalizer(b) {
		return reconcile.Result{}, nil
	}
	v, err := r.load(ctx, b)
	if err != nil {
		return reconcile.Result{}, err
	}
	var due deadline
	now := r.Now()
	pods := v.pods
	if b.Spec.PoolRef != "" {
		err = r.giveBack(ctx, b, v, true, now, &due)
	} else {
		pods, err = r.endOwned(ctx, b)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, pod := range pods {
		switch {
		case pod == nil, b.Spec.PoolRef != "" && !r.runs(b, pod):
		case pod.DeletionTimestamp == nil:
			return reconcile.Result{}, nil // its event brings us back
		case !abandoned(pod, now):
			due.at(abandonedAt(pod))
		}
	}
	if result := due.result(now); result.RequeueAfter > 0 {
		return result, nil
	}
	// A pod that was made a moment ago may not be in the cache yet.
	unseen, err := r.hasUnseen(ctx, b, v)
	if err != nil || unseen {
		return reconcile.Result{}, err
	}
	if err := r.releaseAll(ctx, b); err != nil {
		return reconcile.Result{}, err
	}
	changed := b.DeepCopy()
	changed.Finalizers = without(b.Finalizers, v1alpha1.Finalizer)
	if err := r.client.Patch(ctx, changed,
		client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	*b = *changed
	return reconcile.Result{}, nil
}

// endOwned ends all pods that were made from a batch's template, and returns them as they were.
func (r *reconciler) endOwned(ctx context.Context, b *v1alpha1.BatchSandbox) ([]*corev1.Pod, error) {
	pods, err := r.owned(ctx, b)
	if err != nil {
		return nil, err
	}
	return pods, each(len(pods), func(i int) error { return r.end(ctx, pods[i], false) })
}

// hasUnseen reports whether the API server has a pod of the batch that the cache has not seen: from
// its template, or one that is allocated to it. Pods are asked for by name: a list would read every
// pod of the namespace.
func (r *reconciler) hasUnseen(ctx context.Context, b *v1alpha1.BatchSandbox,
	v *view) (bool, error) {
	last := len(v.names)
	if b.Spec.PoolRef == "" {
		last = max(int(b.Spec.Replicas), int(b.Status.Replicas), len(b.Status.Addresses),
			len(b.Status.Outcomes), r.remember(b).made)
	}
	var found atomic.Bool
	err := each(last, func(number int) error {
		name := podName(b, number)
		if b.Spec.PoolRef != "" {
			name = v.names[number]
		}
		if v.pod(number) != nil || name == "" || v.foreign[number] || found.Load() {
			return nil
		}
		pod := new(metav1.PartialObjectMetadata)
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		err := r.live.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, pod)
		if err == nil && (metav1.IsControlledBy(pod, b) ||
			b.Spec.PoolRef != "" && pod.Labels[v1alpha1.LabelPool] == b.Spec.PoolRef) {
			found.Store(true)
		}
		return client.IgnoreNotFound(err)
	})
	return found.Load(), err
}

// retain keeps the record of a batch that has ended for as long as its spec says, and nothing else
// of it but pods that have ended.
func (r *reconciler) retain(ctx context.Context,
	b *v1alpha1.BatchSandbox) (reconcile.Result, error) {
	r.forgetWork(b.Namespace, b.Name)
	if err := r.releaseAll(ctx, b); err != nil { // where the controller was ended before it
		return reconcile.Result{}, err
	}
	// A request to make a pod may take longer than the batch.
	pods, err := r.owned(ctx, b)
	if err != nil {
		return reconcile.Result{}, err
	}
	kept := int32(0)
	for _, pod := range pods {
		if keeps(b, pod) {
			kept++
		}
		if terminal(pod) {
			continue // it is kept for its log
		}
		if err := r.end(ctx, pod, false); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := r.recordKept(ctx, b, kept); err != nil {
		return reconcile.Result{}, err
	}
	switch ttl := b.Spec.TTLSecondsAfterFinished; {
	case ttl == nil && !expired(&b.Status):
		return reconcile.Result{}, nil
	case ttl != nil && b.Status.FinishedAt != nil:
		if left := b.Status.FinishedAt.Add(time.Duration(*ttl) * time.Second).Sub(r.Now()); left > 0 {
			return reconcile.Result{RequeueAfter: min(left, clockInterval)}, nil
		}
	}
	return reconcile.Result{},
		client.IgnoreNotFound(r.client.Delete(ctx, b, client.Preconditions{UID: &b.UID}))
}

// recordKept writes how many pods there are still of a batch that has ended, when that has changed:
// a pod may be removed before the record is.
func (r *reconciler) recordKept(ctx context.Context, b *v1alpha1.BatchSandbox, kept int32) error {
	if b.Status.Replicas <= kept { // a cache without the last pods' end shows fewer
		return nil
	}
	changed := b.DeepCopy()
	changed.Status.Replicas = kept
	if err := r.client.Status().Patch(ctx, changed,
		client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	*b = *changed
	return nil
}

// expired reports whether the time of a batch was up, however its end went then. The reason of a
// failure does not say that: it may be a pod's, or the word of what ran in it.
func expired(status *v1alpha1.BatchSandboxStatus) bool {
	return slices.ContainsFunc(status.History, func(change v1alpha1.PhaseChange) bool {
		return change.Phase == v1alpha1.PhaseStopping && change.Reason == v1alpha1.ReasonExpired
	})
}

func hasFinalizer(b *v1alpha1.BatchSandbox) bool {
	return len(without(b.Finalizers, v1alpha1.Finalizer)) != len(b.Finalizers)
}

func without(texts []string, unwanted string) []string {
	var kept []string
	for _, text := range texts {
		if text != unwanted {
			kept = append(kept, text)
		}
	}
	return kept
}
