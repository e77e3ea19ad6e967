package batch

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// memory is what the reconciler remembers of a batch. A restart loses it, and no result depends on
// it.
type memory struct {
	written   time.Time         // the status
	allocated time.Time         // when the pool had too few pods
	released  time.Time         // when the allocation was written without pods that have ended
	refused   time.Time         // when a sandbox could not be frozen or thawed
	turned    time.Time         // when execd was last asked to change whether requests wake a sandbox
	refusing  map[int]time.Time // since when execds answer that they do not, by the sandboxes' numbers
	made      int               // the highest number of which this process has made a pod, and 1
	// newest is the batch as this process wrote or read it last, nil once the cache has that
	// version
	newest    *v1alpha1.BatchSandbox
	conflicts int // in a row
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
var errGone = errors.New("the BatchSandbox does not exist any more")

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
	r.idleWatches.forget(key)
	r.forgetWork(key.Namespace, key.Name)
}

// forgetWork ends what is sent to the pods of a batch: tasks, and the claim.
func (r *reconciler) forgetWork(namespace, name string) {
	r.Tasks.Forget(namespace, name)
	r.Claims.Forget(namespace, name)
}
