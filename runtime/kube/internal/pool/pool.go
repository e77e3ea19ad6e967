// Package pool keeps Pools filled with pods and gives these to BatchSandboxes (lifecycle document,
// "Cluster resources").
//
// # Why no pod is given twice
//
// There is one record: the annotation sandbox.internal/allocation of the BatchSandbox. Giving N
// pods is one write of it, which succeeds only while the batch has the version that the controller
// has read. The pods are not written. Before it gives pods to a batch that was created without the
// finalizer, it records them on the Pool (handover), because the API server may delete such a batch
// together with the record.
//
// Only the leader writes it, and checks before each write that it still holds the lease. The ledger
// has what the annotations say, its own writes that the watch does not show yet, and its writes
// whose outcome is unknown. After a write whose answer is lost, the pods stay reserved; the batch
// is read again, and if it still has the old version, that version is changed (labelEpoch). From
// then on the write has either succeeded or never will.
//
// A new leader first lists all batches, then all pods, from the API server and not from a cache,
// and changes the version of every batch that lacks pods. So a late write of an earlier leader
// names a version that no batch has any more, and is refused, however late it is. Where it cannot
// change a batch, no other batch gets the pods that the Pool has at that time.
//
// A used pod is deleted, or marked with the annotation sandbox.internal/recycling, before the
// batch's record loses it; a finalizer keeps a deleted batch until then. A cached object that is
// older than these writes is ignored.
package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// ErrNotLeading means that another controller may have become the leader, so that this one must
// not write.
var ErrNotLeading = errors.New("the lease of the leader was not renewed in time")

// Options are what Setup needs beside the manager. Every field may be left out.
type Options struct {
	// Enqueue requests that a batch is reconciled, because pods have become ready for it. It must
	// not block.
	Enqueue func(namespace, name string)
	// Namespace is the one that the manager's cache is confined to; empty means all.
	Namespace string
	// Lease is the lock of the manager's leader election; nil when there is no election.
	Lease *Lease
	// Equip changes a pod that is about to be created, so that its task-executor accepts the
	// controller; nil changes nothing.
	Equip func(ctx context.Context, pod *corev1.Pod) error
	// Reset restarts the containers of a pod that was used; the default asks its task-executor.
	Reset Resetter
	// RecycleTimeout is how long a pod may take to be ready again after it was used, before it is
	// deleted. The default is two minutes.
	RecycleTimeout time.Duration
	// Metrics is where the metrics are registered; the default is the registry that the manager
	// serves.
	Metrics prometheus.Registerer
}

// Pools gives pods to batches and takes them back. It has nothing that it could not learn again
// from the API server.
type Pools struct {
	client  client.Client
	live    client.Reader // reads from the API server, never from the cache
	events  events.EventRecorder
	options Options
	metrics *poolMetrics
	// restarts pods that are marked
	recycler *recycler
	epoch    string // distinguishes the work of this process from that of earlier ones

	loading sync.Mutex
	loaded  bool
	ledger  *ledger

	mu       sync.Mutex
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
	reported map[types.NamespacedName]time.Time // when the status of a pool was written last
	delays   map[types.NamespacedName]*delay
	audited  map[types.NamespacedName]time.Time // when all batches of a pool were looked at last
	// of pools by their generation: a hash of the template is not made for each allocation
	revisions map[types.NamespacedName]generation
	synced    []cache.InformerSynced // what the ledger learns from has been delivered to it
}

const (
	writeLimit  = 10 * time.Second // for one request to the API server
	parallel    = 16               // requests to the API server at once, for one pool or batch
	recycleTime = 2 * time.Minute
)

// Setup adds the controllers of Pools to the manager.
func Setup(mgr ctrl.Manager, options Options) (*Pools, error) {
	if options.Enqueue == nil {
		options.Enqueue = func(string, string) {}
	}
	if options.Equip == nil {
		options.Equip = func(context.Context, *corev1.Pod) error { return nil }
	}
	if options.Reset == nil {
		options.Reset = &Executor{}
	}
	if options.RecycleTimeout == 0 {
		options.RecycleTimeout = recycleTime
	}
	if options.Metrics == nil {
		options.Metrics = metrics.Registry
	}
	counters, err := newMetrics(options.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics of pools: %w", err)
	}
	p := &Pools{
		client:   mgr.GetClient(),
		live:     mgr.GetAPIReader(),
		events:   mgr.GetEventRecorder("sandbox-controller"),
		options:  options,
		metrics:  counters,
		epoch:    utilrand.String(10),
		ledger:   newLedger(),
		reported: make(map[types.NamespacedName]time.Time),
		delays:   make(map[types.NamespacedName]*delay),
		audited:  make(map[types.NamespacedName]time.Time),

		revisions: make(map[types.NamespacedName]generation),
	}
	p.recycler = newRecycler(p)
	ctx := context.Background()
	if err := p.listen(ctx, mgr); err != nil {
		return nil, err
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("pool").
		For(&v1alpha1.Pool{}).
		WatchesRawSource(source.Func(p.start)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, RateLimiter: backoff()}).
		Complete(p)
	if err != nil {
		return nil, fmt.Errorf("controller of pools: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("pool-recycling").
		For(&corev1.Pod{}, recycledPods).
		WithOptions(controller.Options{MaxConcurrentReconciles: parallel, RateLimiter: backoff()}).
		Complete(p.recycler)
	if err != nil {
		return nil, fmt.Errorf("controller of pods that are recycled: %w", err)
	}
	return p, nil
}

// backoff is how long to wait after errors. Batches wait meanwhile, so it ends where it no longer
// spares the API server anything.
func backoff() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 10*time.Second)
}

// listen connects the ledger to the watches of batches and pods.
func (p *Pools) listen(ctx context.Context, mgr ctrl.Manager) error {
	batches, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.BatchSandbox{})
	if err != nil {
		return fmt.Errorf("watch of BatchSandboxes: %w", err)
	}
	see := func(object any) {
		if batch, ok := object.(*v1alpha1.BatchSandbox); ok && batch.Spec.PoolRef != "" {
			if p.ledger.observe(batch) {
				p.enqueue(batch.Namespace, batch.Spec.PoolRef)
			}
		}
	}
	seen, err := batches.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(object any) {
			if batch, ok := last(object).(*v1alpha1.BatchSandbox); ok && batch.Spec.PoolRef != "" {
				p.ledger.batchDeleted(batch.UID)
				p.enqueue(batch.Namespace, batch.Spec.PoolRef)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch of BatchSandboxes: %w", err)
	}
	p.synced = append(p.synced, seen.HasSynced)
	pods, err := mgr.GetCache().GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return fmt.Errorf("watch of pods: %w", err)
	}
	// The pool is reconciled after the ledger has seen what happened to its pod.
	look := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			if pool, ok := p.ledger.see(pod); ok {
				p.enqueue(pool.Namespace, pool.Name)
			}
		}
	}
	if seen, err = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, object any) { look(object) },
		DeleteFunc: func(object any) {
			if pod, ok := last(object).(*corev1.Pod); ok {
				p.ledger.podDeleted(pod)
				if name := pod.Labels[v1alpha1.LabelPool]; name != "" {
					p.enqueue(pod.Namespace, name)
				}
			}
		},
	}); err != nil {
		return fmt.Errorf("watch of pods: %w", err)
	}
	p.synced = append(p.synced, seen.HasSynced)
	return nil
}

// last is the object that was deleted, also when its deletion was found out only later.
func last(object any) any {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return object
}

// start is the source of requests that do not come from a watch.
func (p *Pools) start(_ context.Context,
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = queue
	return nil
}

// enqueue asks for a pool to be reconciled.
func (p *Pools) enqueue(namespace, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue != nil {
		p.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace,
			Name: name}})
	}
}
