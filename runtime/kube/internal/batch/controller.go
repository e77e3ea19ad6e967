package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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

// reconciler makes BatchSandboxes what their spec says. Its record of a batch is in the API server:
// the spec, the status, the allocation and the pods. Its memory holds only when something was last
// done, so that it is not done too often.
type reconciler struct {
	client  client.Client
	live    client.Reader // past the cache
	events  recorder.EventRecorder
	freezer *freezer
	Options

	mu     sync.Mutex
	memory map[types.NamespacedName]*memory
}

// memory is what may be lost.
type memory struct {
	written   time.Time         // the status
	allocated time.Time         // when the pool had too few pods
	released  time.Time         // when the allocation was written without pods that have ended
	refused   time.Time         // when a sandbox could not be frozen or thawed
	refusing  map[int]time.Time // since when execds answer that they do not, by the sandboxes' numbers
	made      int               // the highest number of which this process has made a pod, and 1
	// newest is the batch as this process wrote or read it last, nil once the cache has that
	// version
	newest    *v1alpha1.BatchSandbox
	conflicts int // in a row
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
	if err := mgr.Add(r.freezer); err != nil {
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

// newest returns the version of a batch to decide on: the one of the cache, or what this process
// has written or read since. A cache lags behind the API server, by seconds where that is busy, and
// a write onto an older version is refused: with a new try for each event of a pod, more requests
// would be refused than served.
func (r *reconciler) newest(cached *v1alpha1.BatchSandbox) *v1alpha1.BatchSandbox {
	m := r.remember(cached)
	if m.newest == nil || m.newest.UID != cached.UID || !older(cached, m.newest) {
		m.newest = nil
		return cached
	}
	return m.newest.DeepCopy()
}

// older reports whether version a of a batch is older than version b.
func older(a, b *v1alpha1.BatchSandbox) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// catchUp reads a batch, of which another client has written a version that the cache does not show
// yet, so that the next step is taken on that one.
func (r *reconciler) catchUp(ctx context.Context, key types.NamespacedName,
	m *memory) (reconcile.Result, error) {
	live := new(v1alpha1.BatchSandbox)
	err := r.live.Get(ctx, key, live)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil // the cache will deliver that
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	live.ManagedFields = nil
	m.newest = live
	pause := min(conflictPause<<min(m.conflicts, 16), maxBackoff)
	m.conflicts++
	return reconcile.Result{RequeueAfter: pause}, nil
}

// errGone means that the batch does not exist any more; the cache will deliver that.
var errGone = errors.New("the BatchSandbox is gone")

// written returns what became of a write of the batch itself. What else is not found, such as a
// Secret, has to be waited for.
func written(err error) error {
	if apierrors.IsNotFound(err) {
		return errGone
	}
	return err
}

func (r *reconciler) remember(b *v1alpha1.BatchSandbox) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := client.ObjectKeyFromObject(b)
	if r.memory[key] == nil {
		r.memory[key] = new(memory)
	}
	return r.memory[key]
}

// drop removes what is in memory of a batch.
func (r *reconciler) drop(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, key)
}

func (r *reconciler) forget(key types.NamespacedName) {
	r.drop(key)
	r.freezer.forget(key)
	r.forgetWork(key.Namespace, key.Name)
}

// forgetWork ends what is sent to the pods of a batch: tasks, and the claim.
func (r *reconciler) forgetWork(namespace, name string) {
	r.Tasks.Forget(namespace, name)
	r.Claims.Forget(namespace, name)
}

// remove ends a batch that is being deleted, and removes its finalizer once it has no pods.
func (r *reconciler) remove(ctx context.Context,
	b *v1alpha1.BatchSandbox) (reconcile.Result, error) {
	r.freezer.forget(client.ObjectKeyFromObject(b))
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
