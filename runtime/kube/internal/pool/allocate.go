package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"sandbox.internal/runtime/kube/v1alpha1"
)

var batchResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group,
	Resource: "batchsandboxes"}

// Allocate gives the batch as many of its pool's ready pods as it lacks, as far as there are any
// and no older batch waits for them, in one write to the API server: the allocation annotation and
// the finalizer of the batch, before which a batch that was created without the finalizer needs a
// write to the Pool. It changes the batch that it is given to what was written, and
// returns how many pods are still missing. The pool makes more, and enqueues the batch when there
// are.
//
// It returns [v1alpha1.ErrNoPool], [v1alpha1.ErrPoolEnds], [v1alpha1.ErrPoolTooSmall],
// [v1alpha1.ErrInvalidPool], [v1alpha1.ErrTooLarge], ErrNotLeading, and an error for which
// apierrors.IsConflict is true when the batch is not the latest.
func (p *Pools) Allocate(ctx context.Context,
	batch *v1alpha1.BatchSandbox) (missing int, err error) {
	started := time.Now()
	if err := p.load(ctx); err != nil {
		return 0, err
	}
	if _, err := batch.Allocation(); err != nil {
		return 0, err
	}
	if missing = missingPods(batch); missing == 0 {
		p.ledger.observe(batch)
		return 0, nil
	}
	landed, err := p.resolveUncertainWrite(ctx, client.ObjectKeyFromObject(batch), batch.UID)
	if v1alpha1.IsTooLarge(err) {
		err = fmt.Errorf("%w: %w", v1alpha1.ErrTooLarge, err)
	}
	if err != nil {
		return missing, err
	}
	if landed != nil {
		landed.DeepCopyInto(batch)
		if missing = missingPods(batch); missing == 0 {
			return 0, nil
		}
	}
	pool, err := p.usable(ctx, batch)
	switch {
	case errors.Is(err, v1alpha1.ErrPoolEnds), errors.Is(err, v1alpha1.ErrPoolTooSmall):
		p.ledger.observe(batch)
		p.ledger.skip(batch.UID) // it holds up no other
		return missing, err
	case err != nil:
		p.ledger.markWaiting(batch)
		return missing, err
	}
	if err := checkRoom(batch); err != nil {
		p.ledger.skip(batch.UID)
		return missing, err
	}
	reserved, current, err := p.ledger.reserve(batch, p.revision(pool), nil)
	if err != nil {
		return missing, err
	}
	if !current {
		return missing, stale(batch)
	}
	defer p.enqueue(batch.Namespace, batch.Spec.PoolRef)
	if reserved == nil {
		return missing, p.checkRequired(ctx, batch, pool)
	}
	if err := p.writeAllocation(ctx, batch, reserved); err != nil {
		return missing, err
	}
	p.metrics.allocated(batch, len(reserved.pods), time.Since(started))
	return missingPods(batch), nil
}

// checkRequired returns [v1alpha1.ErrInvalidPool] for a batch that requires pods which its pool
// does not make any more: its template was changed.
func (p *Pools) checkRequired(ctx context.Context, batch *v1alpha1.BatchSandbox,
	pool *v1alpha1.Pool) error {
	required := batch.Annotations[v1alpha1.AnnotationRequires]
	if required == "" || required == v1alpha1.Provides(pool.Spec.Template) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	var live v1alpha1.Pool // the cache may be behind what the batch's creator has read
	err := p.live.Get(ctx, client.ObjectKeyFromObject(pool), &live)
	switch {
	case apierrors.IsNotFound(err), err == nil && required == v1alpha1.Provides(live.Spec.Template):
		return nil // the watch will deliver that
	case err != nil:
		return fmt.Errorf("pool %s: %w", pool.Name, err)
	}
	p.ledger.skip(batch.UID)
	return fmt.Errorf("%w: image, limits, RuntimeClass or claims in the template of Pool %s were changed after the batch was made",
		v1alpha1.ErrInvalidPool, pool.Name)
}

func stale(batch *v1alpha1.BatchSandbox) error {
	return apierrors.NewConflict(batchResource, batch.Name,
		fmt.Errorf("version %s is not the latest", batch.ResourceVersion))
}

// usable returns the pool of a batch, if it gives pods.
func (p *Pools) usable(ctx context.Context, batch *v1alpha1.BatchSandbox) (*v1alpha1.Pool, error) {
	var pool v1alpha1.Pool
	err := p.client.Get(ctx,
		types.NamespacedName{Namespace: batch.Namespace, Name: batch.Spec.PoolRef}, &pool)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %s", v1alpha1.ErrNoPool, batch.Spec.PoolRef)
	case err != nil:
		return nil, fmt.Errorf("pool %s: %w", batch.Spec.PoolRef, err)
	}
	if err := neverServes(&pool, batch); err != nil {
		// The cache may be behind a Pool that was made again, or larger.
		live := new(v1alpha1.Pool)
		reading, cancel := context.WithTimeout(ctx, writeLimit)
		defer cancel()
		switch failed := p.live.Get(reading, client.ObjectKeyFromObject(&pool), live); {
		case apierrors.IsNotFound(failed):
			return nil, fmt.Errorf("%w: %s", v1alpha1.ErrNoPool, batch.Spec.PoolRef)
		case failed != nil:
			return nil, fmt.Errorf("pool %s: %w", batch.Spec.PoolRef, failed)
		}
		if err := neverServes(live, batch); err != nil {
			return nil, err
		}
		pool = *live
	}
	if err := checkTemplate(&pool); err != nil {
		return nil, fmt.Errorf("%w: Pool %s: %w", v1alpha1.ErrInvalidPool, pool.Name, err)
	}
	return &pool, nil
}

// neverServes returns why a Pool will never give a batch what it asks for, however long that waits.
func neverServes(pool *v1alpha1.Pool, batch *v1alpha1.BatchSandbox) error {
	most := pool.Spec.CapacitySpec.PoolMax
	switch {
	case pool.DeletionTimestamp != nil:
		return fmt.Errorf("pool %s: %w", pool.Name, v1alpha1.ErrPoolEnds)
	case batch.Spec.Replicas > most:
		return fmt.Errorf("pool %s: %w: spec.capacitySpec.poolMax is %d, and spec.replicas of the BatchSandbox %d",
			pool.Name, v1alpha1.ErrPoolTooSmall, most, batch.Spec.Replicas)
	}
	return nil
}

// writeAllocation writes an allocation with the reserved pods, and closes the reservation. When it
// returns an error, it may be unknown whether they are the batch's; then the ledger holds them
// until that is known.
func (p *Pools) writeAllocation(ctx context.Context, batch *v1alpha1.BatchSandbox, reserved *reservation) error {
	skipIfRefused := func(err error) { // those behind it do not wait for it
		if v1alpha1.IsTooLarge(err) || refusal(err) {
			p.ledger.skip(batch.UID)
		}
	}
	next, err := p.withPods(ctx, batch, reserved.pods)
	if err != nil {
		reserved.refuse()
		skipIfRefused(err)
		return err
	}
	if !p.options.Lease.Held() {
		reserved.unknown()
		return ErrNotLeading
	}
	err = p.patch(ctx, next, batch)
	if err == nil {
		reserved.commit(next)
		next.DeepCopyInto(batch)
		return nil
	}
	reserved.unknown()
	live, unresolved := p.resolveUncertainWrite(ctx, client.ObjectKeyFromObject(batch), batch.UID)
	if unresolved != nil {
		p.enqueue(batch.Namespace, batch.Spec.PoolRef) // which tries again
	}
	if live != nil && holdsAll(live, reserved.pods) {
		live.DeepCopyInto(batch)
		return nil
	}
	skipIfRefused(err)
	if v1alpha1.IsTooLarge(err) {
		err = fmt.Errorf("%w: %w", v1alpha1.ErrTooLarge, err)
	}
	return fmt.Errorf("give pods of pool %s: %w", batch.Spec.PoolRef, err)
}

// withPods returns the batch with more pods in its allocation. A batch that was created without the
// finalizer is written to the Pool before.
func (p *Pools) withPods(ctx context.Context, batch *v1alpha1.BatchSandbox,
	names []string) (*v1alpha1.BatchSandbox, error) {
	allocation, err := batch.Allocation()
	if err != nil {
		return nil, err
	}
	since := cleanSince(p.ledger.podsNamed(batch.Namespace, names), names)
	if err := p.handOver(ctx, batch, names); err != nil {
		return nil, err
	}
	if len(allocation.Pods) > 0 {
		since = later(allocation.Since, since)
	}
	next := batch.DeepCopy()
	next.SetAllocation(v1alpha1.Allocation{Pods: assign(batch, allocation.Pods, names), Since: since})
	controllerutil.AddFinalizer(next, v1alpha1.Finalizer)
	return next, nil
}

// assign gives the numbers of a batch that lack a pod one of the names each.
func assign(batch *v1alpha1.BatchSandbox, pods, names []string) []string {
	for number := 0; number < int(batch.Spec.Replicas) && len(names) > 0; number++ {
		if number == len(pods) {
			pods = append(pods, "")
		}
		if batch.Lacks(pods, number) {
			pods[number], names = names[0], names[1:]
		}
	}
	return pods
}

// maxAnnotations is how many bytes the API server allows the annotations of an object, names and
// values together.
const maxAnnotations = 256 << 10

// checkRoom returns [v1alpha1.ErrTooLarge] for a batch that the names of all its pods do not fit
// into.
func checkRoom(batch *v1alpha1.BatchSandbox) error {
	size := 0
	for name, value := range batch.Annotations {
		size += len(name) + len(value)
	}
	allocation, err := batch.Allocation()
	if err != nil {
		return err
	}
	whole := &v1alpha1.BatchSandbox{}
	names := slices.Repeat([]string{strings.Repeat("x", len(batch.Spec.PoolRef)+1+suffixLength)},
		missingPods(batch))
	whole.SetAllocation(v1alpha1.Allocation{Pods: assign(batch, allocation.Pods, names),
		Since: &metav1.Time{Time: time.Now()}})
	need := len(v1alpha1.AnnotationAllocation) +
		len(whole.Annotations[v1alpha1.AnnotationAllocation])
	if present, ok := batch.Annotations[v1alpha1.AnnotationAllocation]; ok {
		size -= len(v1alpha1.AnnotationAllocation) + len(present)
	}
	if size+need > maxAnnotations {
		return fmt.Errorf(
			"%w: the names of %d pods of Pool %s need %d bytes of the BatchSandbox's annotations; others have %d, and there are %d: ask for fewer replicas or remove annotations",
			v1alpha1.ErrTooLarge, batch.Spec.Replicas, batch.Spec.PoolRef, need, size,
			maxAnnotations)
	}
	return nil
}

// patch changes an object from base to next, if base is still the latest. next becomes what was
// written.
func (p *Pools) patch(ctx context.Context, next, base client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return p.client.Patch(ctx, next,
		client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

func holdsAll(batch *v1alpha1.BatchSandbox, names []string) bool {
	allocation, err := batch.Allocation()
	if err != nil {
		return false
	}
	held := setOf(allocation.Pods)
	return !slices.ContainsFunc(names, func(name string) bool { return !held[name] })
}

// resolveUncertainWrite reads the outcome of an uncertain write, if there is one. A batch that
// still has the version which the write would replace is given another, so that the write can no
// longer happen, unless the API server refuses both for the same reason. It returns the batch as it
// is then, nil when there was no such write or the batch is gone.
func (p *Pools) resolveUncertainWrite(ctx context.Context, key types.NamespacedName,
	uid types.UID) (*v1alpha1.BatchSandbox, error) {
	base, ok := p.ledger.uncertainBase(uid)
	if !ok {
		return nil, nil
	}
	live, err := p.read(ctx, key)
	if err == nil && live.UID == uid && live.ResourceVersion == base {
		bumped, refusal := p.forceConflict(ctx, key)
		if !refusesAllocation(live, refusal) {
			live, err = bumped, refusal
		}
	}
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != uid:
		p.ledger.batchDeleted(uid)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read outcome of allocation for %s: %w", key.Name, err)
	}
	p.ledger.observe(live)
	p.ledger.writeRefused(uid, base)
	return live, nil
}

// read reads a batch from the API server.
func (p *Pools) read(ctx context.Context,
	key types.NamespacedName) (*v1alpha1.BatchSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	batch := new(v1alpha1.BatchSandbox)
	return batch, p.live.Get(ctx, key, batch)
}

// forceConflict changes a batch's version, whatever that is, and returns the batch.
func (p *Pools) forceConflict(ctx context.Context,
	key types.NamespacedName) (*v1alpha1.BatchSandbox, error) {
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"labels": map[string]string{
			labelEpoch: p.epoch + "-" + utilrand.String(5),
		}}})
	if err != nil {
		return nil, err
	}
	if !p.options.Lease.Held() {
		return nil, ErrNotLeading
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	batch := &v1alpha1.BatchSandbox{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace,
		Name: key.Name}}
	return batch, p.client.Patch(ctx, batch, client.RawPatch(types.MergePatchType, patch))
}
