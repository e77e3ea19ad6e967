package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// labelEpoch, on a BatchSandbox that lacked pods when a controller took over, or when the outcome
// of a write was unknown, names that controller's run. What it says does not matter: writing it
// changes the batch's version, so that a write that may still be on its way can no longer happen.
// It is a label because the annotations of an object, unlike its labels, may be full.
const labelEpoch = "sandbox.internal/epoch"

// errNotDelivered is why nothing is given or taken yet.
var errNotDelivered = errors.New("the watch has not delivered all pods and batches yet")

// load fills the ledger from the API server, once, before anything is given or taken: by then this
// process is the leader. The lists are quorum reads. Batches come first: what a batch no longer has
// in this list was marked or deleted before, and the list of pods that follows shows that; for
// batches that are gone without having given their pods back, the Pools' handovers do. Events of
// watches wait meanwhile.
func (p *Pools) load(ctx context.Context) error {
	p.loading.Lock()
	defer p.loading.Unlock()
	if p.loaded {
		return nil
	}
	if !p.options.Lease.Held() {
		return ErrNotLeading
	}
	waiting, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if !cache.WaitForCacheSync(waiting.Done(), p.synced...) { // soon: the cache is filled
		return errNotDelivered
	}
	l := p.ledger
	l.mu.Lock()
	defer l.mu.Unlock()

	var list v1alpha1.BatchSandboxList
	if err := p.live.List(ctx, &list, client.InNamespace(p.options.Namespace)); err != nil {
		return fmt.Errorf("list BatchSandboxes: %w", err)
	}
	batches := make(map[types.UID]*v1alpha1.BatchSandbox)
	for i := range list.Items {
		if batch := &list.Items[i]; batch.Spec.PoolRef != "" {
			batches[batch.UID] = batch
		}
	}
	unfenced, err := p.fence(ctx, batches)
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := p.live.List(ctx, &pods, client.InNamespace(p.options.Namespace),
		client.HasLabels{v1alpha1.LabelPool}); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var pools v1alpha1.PoolList
	if err := p.live.List(ctx, &pools, client.InNamespace(p.options.Namespace)); err != nil {
		return fmt.Errorf("list Pools: %w", err)
	}
	// What the watches have delivered so far may be older than these lists.
	fresh := newLedger()
	l.batches, l.holders, l.orphans = fresh.batches, fresh.holders, fresh.orphans
	for _, batch := range slices.SortedFunc(maps.Values(batches), byAge) {
		l.noteBatch(batch) // a copy of a batch after the batch, whose pods it names, too
	}
	l.listVersion = pods.ResourceVersion
	for i := range pods.Items {
		l.minVersions[pods.Items[i].UID] = pods.Items[i].ResourceVersion
	}
	l.takeOver(pools.Items, pods.Items, time.Now())
	l.holdBack(unfenced, pods.Items)
	l.touchAll()
	p.loaded = true
	return nil
}

// byAge orders batches as earlier does.
func byAge(a, b *v1alpha1.BatchSandbox) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// fence makes it impossible that a write of an earlier leader still gives pods to a batch. It
// returns the batches that the API server did not let it change, for which that stays possible: one
// of them must not hold up the others.
func (p *Pools) fence(ctx context.Context,
	batches map[types.UID]*v1alpha1.BatchSandbox) (unfenced []types.UID, err error) {
	var mu sync.Mutex
	fenced := make(map[types.UID]*v1alpha1.BatchSandbox)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for uid, batch := range batches {
		if missingPods(batch) == 0 {
			continue
		}
		group.Go(func() error {
			bumped, err := p.forceConflict(ctx, client.ObjectKeyFromObject(batch))
			if apierrors.IsNotFound(err) || err == nil && bumped.UID != uid {
				bumped, err = nil, nil
			}
			if refusesAllocation(batch, err) {
				return nil
			}
			var answer apierrors.APIStatus
			if err != nil && !errors.As(err, &answer) {
				return fmt.Errorf("take over BatchSandbox %s: %w", batch.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				ctrl.LoggerFrom(ctx).Error(err,
					"a BatchSandbox cannot be changed: pods of its Pool are held back",
					"namespace", batch.Namespace, "name", batch.Name)
				unfenced = append(unfenced, uid)
				return nil
			}
			fenced[uid] = bumped
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for uid, batch := range fenced {
		if batch != nil {
			batches[uid] = batch
		} else {
			delete(batches, uid)
		}
	}
	return unfenced, nil
}

// refusesAllocation reports whether an error of forceConflict says that the API server refuses a
// write that gives pods as well: the batch breaks a rule, or has no room for a label. A first
// allocation needs more room than the label; a longer one may need less.
func refusesAllocation(batch *v1alpha1.BatchSandbox, err error) bool {
	_, allocated := batch.Annotations[v1alpha1.AnnotationAllocation]
	return apierrors.IsInvalid(err) || v1alpha1.IsTooLarge(err) && !allocated
}
