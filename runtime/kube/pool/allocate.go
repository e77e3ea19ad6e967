package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sandbox.internal/runtime/kube/v1alpha1"
)

var batchResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "batchsandboxes"}

// Allocate gives the batch as many of its pool's ready pods as it lacks, as far as there are any and no older batch waits for them, in one
// write to the API server: the allocation annotation and the finalizer of the batch. It changes the batch that it is given to what was
// written, and returns how many pods are still missing. The pool makes more, and wakes the batch when there are.
//
// It returns ErrNoPool, ErrInvalidPool, ErrNotLeading, and an error that apierrors.IsConflict tells when the batch is not the latest.
func (p *Pools) Allocate(ctx context.Context, batch *v1alpha1.BatchSandbox) (missing int, err error) {
	started := time.Now()
	if err := p.load(ctx); err != nil {
		return 0, err
	}
	if _, err := batch.Allocation(); err != nil {
		return 0, err
	}
	if missing = lack(batch); missing == 0 {
		p.ledger.observe(batch)
		return 0, nil
	}
	landed, err := p.settle(ctx, client.ObjectKeyFromObject(batch), batch.UID)
	if err != nil {
		return missing, err
	}
	if landed != nil {
		landed.DeepCopyInto(batch)
		if missing = lack(batch); missing == 0 {
			return 0, nil
		}
	}
	pool, err := p.usable(ctx, batch)
	if err != nil {
		p.ledger.ask(batch)
		return missing, err
	}
	pods, err := p.podsOf(ctx, client.ObjectKeyFromObject(pool))
	if err != nil {
		return missing, err
	}
	revision := revisionOf(pool)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if x, y := a.Labels[v1alpha1.LabelRevision] == revision, b.Labels[v1alpha1.LabelRevision] == revision; x != y {
			if x {
				return -1
			}
			return 1
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	names, current := p.ledger.reserve(batch, pods)
	if !current {
		return missing, stale(batch)
	}
	defer p.look(batch.Namespace, batch.Spec.PoolRef)
	if len(names) == 0 {
		return missing, nil
	}
	if err := p.give(ctx, batch, names); err != nil {
		return missing, err
	}
	p.metrics.allocated(batch, len(names), time.Since(started))
	return lack(batch), nil
}

func stale(batch *v1alpha1.BatchSandbox) error {
	return apierrors.NewConflict(batchResource, batch.Name, fmt.Errorf("version %s is not the latest", batch.ResourceVersion))
}

// usable returns the pool of a batch, if it gives pods.
func (p *Pools) usable(ctx context.Context, batch *v1alpha1.BatchSandbox) (*v1alpha1.Pool, error) {
	var pool v1alpha1.Pool
	err := p.client.Get(ctx, types.NamespacedName{Namespace: batch.Namespace, Name: batch.Spec.PoolRef}, &pool)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %s", ErrNoPool, batch.Spec.PoolRef)
	case err != nil:
		return nil, fmt.Errorf("pool %s: %w", batch.Spec.PoolRef, err)
	case pool.DeletionTimestamp != nil:
		return nil, fmt.Errorf("%w: %s is being deleted and gives no more pods", ErrNoPool, pool.Name)
	}
	if err := checkTemplate(&pool); err != nil {
		return nil, fmt.Errorf("%w: Pool %s: %w", ErrInvalidPool, pool.Name, err)
	}
	return &pool, nil
}

// podsOf returns the pods of a pool as the cache has them. They must not be changed.
func (p *Pools) podsOf(ctx context.Context, pool types.NamespacedName) ([]*corev1.Pod, error) {
	var list corev1.PodList
	err := p.client.List(ctx, &list, client.InNamespace(pool.Namespace), client.MatchingFields{indexPool: pool.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("pods of pool %s: %w", pool.Name, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// give writes an allocation with more pods. When it returns an error nobody may know whether they are the batch's; then the ledger holds
// them until that is known.
func (p *Pools) give(ctx context.Context, batch *v1alpha1.BatchSandbox, names []string) error {
	next := batch.DeepCopy()
	allocation, err := next.Allocation()
	if err != nil {
		p.ledger.refused(batch.UID)
		return err
	}
	allocation.Pods = append(allocation.Pods, names...)
	next.SetAllocation(allocation)
	controllerutil.AddFinalizer(next, v1alpha1.Finalizer)
	if !p.options.Lease.Held() {
		p.ledger.doubtful(batch.UID)
		return ErrNotLeading
	}
	err = p.patch(ctx, next, batch)
	if err == nil {
		p.ledger.wrote(next)
		next.DeepCopyInto(batch)
		return nil
	}
	p.ledger.doubtful(batch.UID)
	live, settling := p.settle(ctx, client.ObjectKeyFromObject(batch), batch.UID)
	if settling != nil {
		p.look(batch.Namespace, batch.Spec.PoolRef) // which tries again
	}
	if live != nil && holdsAll(live, names) {
		live.DeepCopyInto(batch)
		return nil
	}
	return fmt.Errorf("give pods of pool %s: %w", batch.Spec.PoolRef, err)
}

// patch changes an object from base to next, if base is still the latest. next becomes what was written.
func (p *Pools) patch(ctx context.Context, next, base client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return p.client.Patch(ctx, next, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

func holdsAll(batch *v1alpha1.BatchSandbox, names []string) bool {
	allocation, err := batch.Allocation()
	if err != nil {
		return false
	}
	for _, name := range names {
		if !slices.Contains(allocation.Pods, name) {
			return false
		}
	}
	return true
}

// settle finds out what became of a write in doubt, if there is one. A batch that still has the version which the write would replace is given
// another, so that the write can no longer happen. settle returns the batch as it is then, nil when there was no doubt or the batch is gone.
func (p *Pools) settle(ctx context.Context, key types.NamespacedName, uid types.UID) (*v1alpha1.BatchSandbox, error) {
	base, ok := p.ledger.inDoubt(uid)
	if !ok {
		return nil, nil
	}
	live, err := p.read(ctx, key)
	if err == nil && live.UID == uid && live.ResourceVersion == base {
		live, err = p.bump(ctx, key)
	}
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != uid:
		p.ledger.vanished(uid)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("what became of giving pods to %s: %w", key.Name, err)
	}
	p.ledger.observe(live)
	p.ledger.refused(uid)
	return live, nil
}

// read reads a batch from the API server.
func (p *Pools) read(ctx context.Context, key types.NamespacedName) (*v1alpha1.BatchSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	batch := new(v1alpha1.BatchSandbox)
	return batch, p.live.Get(ctx, key, batch)
}

// bump changes a batch's version, whatever that is, and returns the batch.
func (p *Pools) bump(ctx context.Context, key types.NamespacedName) (*v1alpha1.BatchSandbox, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		AnnotationEpoch: p.epoch + "-" + utilrand.String(5),
	}}})
	if err != nil {
		return nil, err
	}
	if !p.options.Lease.Held() {
		return nil, ErrNotLeading
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	batch := &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	return batch, p.client.Patch(ctx, batch, client.RawPatch(types.MergePatchType, patch))
}
