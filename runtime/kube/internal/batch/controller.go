package batch

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/wire/sandboxhttp"
)

const (
	// statusInterval is how often numbers are written that change by themselves; a change of phase
	// is written at once.
	statusInterval = 500 * time.Millisecond
	// allocateInterval is how often a pool is asked for more pods that had too few: else every pod
	// that becomes ready would cost a write.
	allocateInterval = 200 * time.Millisecond
	// freezeInterval is how long after a freeze or thaw that failed the next one begins.
	freezeInterval = time.Second
	// stuckAfter is for how long an execd may answer that it does not freeze or thaw before its
	// sandbox has failed.
	stuckAfter = 30 * time.Second
	// resyncInterval is when a batch that waits for something outside is reconciled, even without
	// an event.
	resyncInterval = 10 * time.Second
	// clockInterval is how late a time may be noticed after a step of the clock or a suspended
	// host, which the timers of the queue do not take part in.
	clockInterval = time.Minute
	// conflictPause is how long after a conflict a batch is tried again, on what the API server
	// has; it doubles with each further one.
	conflictPause = 50 * time.Millisecond
	// maxBackoff bounds the pause between tries of what fails.
	maxBackoff = 15 * time.Second

	workers = 64
)

// Options are what Setup needs besides the manager.
type Options struct {
	Pools    Pools
	Tasks    Tasks
	Claims   Claims
	Enqueuer *Enqueuer
	Metrics  *Metrics
	// Equip changes a pod that is about to be created, so that its task-executor accepts the
	// controller; nil changes nothing.
	Equip func(ctx context.Context, pod *corev1.Pod) error
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// reconciler brings BatchSandboxes to the state that their spec describes. The record of a batch is
// in the API server: the spec, the status, the allocation and the pods. The memory holds only when
// something was last done, so that it is not done too often.
type reconciler struct {
	client      client.Client
	live        client.Reader // past the cache
	events      recorder.EventRecorder
	freezer     *freezer
	idleWatches *idleWatches
	Options

	mu     sync.Mutex
	memory map[types.NamespacedName]*memory
}

// The names of the cache's indexes.
const (
	indexOwner = "sandbox.internal/owner" // pods by the UID of their BatchSandbox
	// BatchSandboxes by the names of pool pods that they hold
	indexAllocated = "sandbox.internal/allocated"
)

// Setup adds the controller of BatchSandboxes to a manager.
func Setup(mgr manager.Manager, options Options) error {
	if options.Now == nil {
		options.Now = time.Now
	}
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events:  mgr.GetEventRecorder(v1alpha1.ManagedBy),
		Options: options, memory: make(map[types.NamespacedName]*memory),
		freezer: newFreezer(sandboxhttp.NewClient(sandboxhttp.Options{IdleConnections: 2}),
			options.Enqueuer.Enqueue),
	}
	r.idleWatches = newIdleWatches(sandboxhttp.NewClient(sandboxhttp.Options{
		HeaderTimeout: watchSilence, MaxAnswer: sandboxhttp.Unbounded}), options.Enqueuer.enqueueAfter)
	if err := mgr.Add(r.freezer); err != nil {
		return err
	}
	if err := mgr.Add(r.idleWatches); err != nil {
		return err
	}
	indexer := mgr.GetFieldIndexer()
	if err := indexer.IndexField(context.Background(), &corev1.Pod{}, indexOwner,
		ownerOf); err != nil {
		return err
	}
	if err := indexer.IndexField(context.Background(), &v1alpha1.BatchSandbox{}, indexAllocated,
		allocatedTo); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("batchsandbox").
		For(&v1alpha1.BatchSandbox{}).
		Owns(&corev1.Pod{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.holderOf)).
		WatchesRawSource(source.Func(options.Enqueuer.start)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			SkipNameValidation:      ptr.To(true), // several managers may live in one process
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, maxBackoff),
		}).
		Complete(r)
}

func ownerOf(object client.Object) []string {
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == "BatchSandbox" {
		return []string{string(owner.UID)}
	}
	return nil
}

func allocatedTo(object client.Object) []string {
	a, err := object.(*v1alpha1.BatchSandbox).Allocation()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(a.Pods))
	for _, name := range a.Pods {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// holderOf returns the batch that holds a pod of a pool.
func (r *reconciler) holderOf(ctx context.Context, pod client.Object) []reconcile.Request {
	if pod.GetLabels()[v1alpha1.LabelPool] == "" {
		return nil
	}
	var holders v1alpha1.BatchSandboxList
	if err := r.client.List(ctx, &holders, client.InNamespace(pod.GetNamespace()),
		client.MatchingFields{indexAllocated: pod.GetName()},
		client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot find the owner of the pod", "pod", pod.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range holders.Items {
		requests = append(requests,
			reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&holders.Items[i])})
	}
	return requests
}

// Reconcile reads one batch and takes its next step. Each step is idempotent, and the process may
// be killed between any two.
func (r *reconciler) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	b := new(v1alpha1.BatchSandbox)
	if err := r.client.Get(ctx, request.NamespacedName, b); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	b = r.newest(b)
	version := b.ResourceVersion
	result, err := r.step(ctx, b)
	m := r.remember(b)
	if b.ResourceVersion != version {
		b.ManagedFields = nil
		m.newest = b
	} else if err == nil && b.Status.Phase.Finished() && m.newest == nil {
		r.drop(request.NamespacedName) // the cache has its end, and it may be on record for hours
	}
	switch {
	case apierrors.IsConflict(err):
		return r.catchUp(ctx, request.NamespacedName, m)
	case errors.Is(err, errGone):
		return reconcile.Result{}, nil
	}
	m.conflicts = 0
	return result, err
}

// step takes the next step of a batch, and changes it to what is written.
func (r *reconciler) step(ctx context.Context,
	b *v1alpha1.BatchSandbox) (result reconcile.Result, err error) {
	switch {
	case b.DeletionTimestamp != nil:
		result, err = r.remove(ctx, b)
	case b.Status.Phase.Finished():
		result, err = r.retain(ctx, b)
	default:
		result, err = r.advance(ctx, b)
	}
	return result, err
}

// each calls do for 0 to n-1 in parallel and returns the first error.
func each(n int, do func(i int) error) error {
	results := make([]error, n)
	inParallel(n, func(i int) { results[i] = do(i) })
	for _, err := range results {
		if err != nil {
			return err
		}
	}
	return nil
}
