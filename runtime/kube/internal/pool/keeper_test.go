package pool_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"sandbox.internal/runtime/kube/internal/pool"
	"sandbox.internal/runtime/kube/v1alpha1"
)

// keeper is the smallest batch controller: it allocates, and releases when the batch is deleted.
type keeper struct {
	client.Client
	pools   *pool.Pools
	ignored []string
	mu      sync.Mutex
	asked   map[string]bool // batches that pods were asked for
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (k *keeper) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("keeper").For(&v1alpha1.BatchSandbox{}).
		WatchesRawSource(
			source.Func(
				func(_ context.Context,
					queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
					k.mu.Lock()
					defer k.mu.Unlock()
					k.queue = queue
					return nil
				})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 8,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, time.Second),
		}).Complete(k)
}

func (k *keeper) enqueue(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queue != nil {
		k.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace,
			Name: name}})
	}
}

func (k *keeper) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	if slices.Contains(k.ignored, request.Name) {
		return reconcile.Result{}, nil
	}
	var batch v1alpha1.BatchSandbox
	if err := k.Get(ctx, request.NamespacedName, &batch); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if batch.DeletionTimestamp == nil {
		_, err := k.pools.Allocate(ctx, &batch)
		k.mu.Lock()
		k.asked[batch.Name] = true
		k.mu.Unlock()
		if err == nil || errors.Is(err, v1alpha1.ErrNoPool) ||
			errors.Is(err, v1alpha1.ErrInvalidPool) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	allocation, err := batch.Allocation()
	if err != nil {
		return reconcile.Result{}, err
	}
	var all []int
	for i := range allocation.Pods {
		all = append(all, i)
	}
	if err := k.pools.Release(ctx, &batch, all); err != nil {
		return reconcile.Result{}, err
	}
	if controllerutil.RemoveFinalizer(&batch, v1alpha1.Finalizer) {
		return reconcile.Result{}, client.IgnoreNotFound(k.Update(ctx, &batch))
	}
	return reconcile.Result{}, nil
}
