package pool

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// Retire begins to take pods back, by the sandboxes' numbers: with the strategy Delete the pod is
// deleted, with Restart it is marked, so that it is reset, and not given before its containers have
// been restarted. The allocation keeps their names. Retire is idempotent. Numbers that the batch
// does not have are ignored.
//
// It returns ErrNotLeading, and an error for which apierrors.IsConflict is true when the batch is
// not the latest.
func (p *Pools) Retire(ctx context.Context, batch *v1alpha1.BatchSandbox, shards []int) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	p.ledger.observe(batch)
	allocation, err := batch.Allocation()
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	for _, shard := range shards {
		if shard >= 0 && shard < len(allocation.Pods) && allocation.Pods[shard] != "" {
			names[allocation.Pods[shard]] = true
		}
	}
	if len(names) == 0 {
		return nil
	}
	return p.retire(ctx, batch, names)
}

// Ended reports whether everything of its sandbox has ended in a pod that Retire has marked: its
// task-executor has reset it. Until then it is as if it had not been marked.
func (p *Pools) Ended(pod *corev1.Pod) bool { return isRecycling(pod) && p.recycler.done(pod) }

// Release retires pods, where that was not done, and then writes the allocation without them: with
// an empty name in the place of each, and cut to spec.replicas. Release is idempotent. Numbers that
// the batch does not have are ignored.
//
// It returns ErrNotLeading, and an error for which apierrors.IsConflict is true when the batch is
// not the latest.
func (p *Pools) Release(ctx context.Context, batch *v1alpha1.BatchSandbox, shards []int) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	if _, err := p.resolveUncertainWrite(ctx, client.ObjectKeyFromObject(batch), batch.UID); err != nil {
		return err
	}
	p.ledger.observe(batch)
	allocation, err := batch.Allocation()
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	kept := append([]string(nil), allocation.Pods...)
	for _, shard := range shards {
		if shard >= 0 && shard < len(kept) && kept[shard] != "" {
			names[kept[shard]] = true
			kept[shard] = ""
		}
	}
	for len(kept) > int(batch.Spec.Replicas) && kept[len(kept)-1] == "" {
		kept = kept[:len(kept)-1]
	}
	if len(names) == 0 && len(kept) == len(allocation.Pods) {
		return nil
	}
	if err := p.retire(ctx, batch, names); err != nil {
		return err
	}
	next := batch.DeepCopy()
	next.SetAllocation(v1alpha1.Allocation{Pods: kept, Since: allocation.Since})
	if err := p.patch(ctx, next, batch); err != nil {
		return fmt.Errorf("take pods back from %s: %w", batch.Name, err)
	}
	p.ledger.writeSucceeded(next)
	next.DeepCopyInto(batch)
	p.enqueue(batch.Namespace, batch.Spec.PoolRef)
	return nil
}

// Holds reports whether a pod that the batch's allocation names is the batch's. It is another one's
// where the annotation was copied, or edited so.
//
// It returns ErrNotLeading, and an error for which apierrors.IsConflict is true when the pod is not
// the batch's and the batch not the latest.
func (p *Pools) Holds(ctx context.Context, batch *v1alpha1.BatchSandbox, pod string) (bool,
	error) {
	if err := p.load(ctx); err != nil {
		return false, err
	}
	owns, current := p.ledger.owns(batch, pod)
	if !owns && !current {
		return false, stale(batch)
	}
	return owns, nil
}

// retire deletes or marks pods that a batch gives back.
func (p *Pools) retire(ctx context.Context, batch *v1alpha1.BatchSandbox,
	names map[string]bool) error {
	if !p.options.Lease.Held() {
		return ErrNotLeading
	}
	var pool v1alpha1.Pool
	err := p.client.Get(ctx,
		types.NamespacedName{Namespace: batch.Namespace, Name: batch.Spec.PoolRef}, &pool)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("pool %s: %w", batch.Spec.PoolRef, err)
	}
	restart := err == nil && pool.DeletionTimestamp == nil &&
		pool.Spec.RecycleStrategy == v1alpha1.RecycleRestart

	var group errgroup.Group
	group.SetLimit(parallel)
	for name := range names {
		group.Go(func() error {
			if err := p.retireOne(ctx, batch, name, restart, &pool); err != nil {
				return fmt.Errorf("take pod %s back from %s: %w", name, batch.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.ledger.markReturned(batch.UID, names)
	return nil
}

func (p *Pools) retireOne(ctx context.Context, batch *v1alpha1.BatchSandbox, name string,
	restart bool, pool *v1alpha1.Pool) error {
	key := types.NamespacedName{Namespace: batch.Namespace, Name: name}
	var pod corev1.Pod
	err := p.client.Get(ctx, key, &pod)
	if apierrors.IsNotFound(err) {
		err = p.live.Get(ctx, key, &pod) // the cache may be behind
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	if pod.DeletionTimestamp != nil {
		return nil
	}
	// The annotation may have been edited. An edit must not delete another batch's pod.
	if pod.Labels[v1alpha1.LabelPool] != batch.Spec.PoolRef || !p.ledger.holds(batch.UID, key) {
		return nil
	}
	if restart && !isEvicted(&pod) {
		if isRecycling(&pod) {
			return nil
		}
		reason := p.cannotRestart(&pod)
		if reason == "" {
			err := p.mark(ctx, &pod)
			if !v1alpha1.IsTooLarge(err) {
				return client.IgnoreNotFound(err)
			}
			reason = "its annotations have no room for a mark"
		}
		p.events.Eventf(pool, &pod, corev1.EventTypeWarning, "NotRestarted", "Recycle",
			"Pod %s is deleted instead of restarted: %s", pod.Name, reason)
	}
	if p.ledger.isBeingDeleted(&pod) || !p.ledger.deletionStarted(&pod, batch.UID) {
		return nil
	}
	if err := p.delete(ctx, &pod); err != nil {
		return err
	}
	p.metrics.recycled(batch.Namespace, batch.Spec.PoolRef, recycledByDelete)
	return nil
}

func isEvicted(pod *corev1.Pod) bool {
	_, evicted := pod.Labels[v1alpha1.LabelEvict]
	return evicted
}

// delete removes a pod whose deletion deletionStarted has noted.
func (p *Pools) delete(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	err := client.IgnoreNotFound(p.client.Delete(ctx, pod.DeepCopy(),
		client.Preconditions{UID: &pod.UID}))
	if apierrors.IsConflict(err) {
		err = nil // another pod of that name: this one is gone
	}
	p.ledger.deletionDone(pod, err)
	return err
}
