package manager

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// FinalizerRights keeps the controller's rights in the namespace of the sandboxes while there is a
// BatchSandbox or Pool, which only the controller lets go.
const FinalizerRights = "sandbox.internal/rights"

// rightsRetry is the pause after a failure to change the finalizers.
const rightsRetry = time.Second

// rights holds the Role and the RoleBindings by which the controller works in a namespace. A
// namespace that is deleted loses its objects in any order: without its rights the controller could
// not remove the finalizers of BatchSandboxes and Pools, and the namespace would stay for ever. So
// these have a finalizer, too, as long as there is a BatchSandbox or Pool, and no longer: a
// controller that is removed with all its sandboxes must not leave any.
type rights struct {
	client    client.Client
	live      client.Reader
	namespace string
	// of the Role and the RoleBinding with the controller's rights. A RoleBinding with the suffix
	// lastSuffix lets it change the finalizers of all three; it binds a ClusterRole, which does not
	// go with the namespace, so that its own finalizer can be removed last
	name     string
	synced   []cache.InformerSynced
	present  atomic.Int64 // BatchSandboxes and Pools
	changed  chan struct{}
	attempts int // that failed in a row
}

const lastSuffix = "-last"

// holdRights adds the part that holds the controller's rights to the manager.
func (m *Manager) holdRights(namespace, name string) error {
	if namespace == "" {
		return errors.New("--rights: needs --namespace")
	}
	r := &rights{client: m.GetClient(), live: m.GetAPIReader(), namespace: namespace, name: name,
		changed: make(chan struct{}, 1)}
	for _, kind := range []client.Object{new(v1alpha1.BatchSandbox), new(v1alpha1.Pool)} {
		informer, err := m.GetCache().GetInformer(context.Background(), kind)
		if err != nil {
			return fmt.Errorf("watch for the controller's rights: %w", err)
		}
		registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { r.count(1) },
			DeleteFunc: func(any) { r.count(-1) },
		})
		if err != nil {
			return fmt.Errorf("watch for the controller's rights: %w", err)
		}
		r.synced = append(r.synced, registered.HasSynced)
	}
	return m.Add(r)
}

func (r *rights) count(change int64) {
	if now := r.present.Add(change); now != 0 && now != change {
		return // neither the first nor the last one
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *rights) NeedLeaderElection() bool { return true }

// Start works until the context ends.
func (r *rights) Start(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), r.synced...) {
		return nil
	}
	for {
		var again <-chan time.Time
		var timer *time.Timer
		if err := r.apply(ctx, r.present.Load() > 0); err != nil && ctx.Err() == nil {
			if r.attempts == 0 {
				log.FromContext(ctx).Error(err,
					"the controller's rights may be deleted before the sandboxes: the deletion of their namespace may not end")
			}
			r.attempts++
			timer = time.NewTimer(rightsRetry << min(r.attempts, 5))
			again = timer.C
		} else {
			r.attempts = 0
		}
		select {
		case <-ctx.Done():
		case <-r.changed:
		case <-again:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// apply adds the finalizer, or removes it, of the binding by which it may do that last of all.
func (r *rights) apply(ctx context.Context, hold bool) error {
	objects := []client.Object{new(rbacv1.Role), new(rbacv1.RoleBinding), new(rbacv1.RoleBinding)}
	names := []string{r.name, r.name, r.name + lastSuffix}
	var failed []error
	for i, object := range objects {
		if err := r.applyTo(ctx, object, names[i], hold); err != nil {
			failed = append(failed, fmt.Errorf("%T %s: %w", object, names[i], err))
		}
	}
	return errors.Join(failed...)
}

func (r *rights) applyTo(ctx context.Context, object client.Object, name string, hold bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return nil // gone with its namespace, or not from the chart
	}
	if err != nil {
		return err
	}
	ending := object.GetDeletionTimestamp()
	before := object.DeepCopyObject().(client.Object)
	switch {
	case hold && (ending != nil || !controllerutil.AddFinalizer(object, FinalizerRights)):
		return nil // what is being deleted takes no more finalizers
	case !hold && !controllerutil.RemoveFinalizer(object, FinalizerRights):
		return nil
	}
	return client.IgnoreNotFound(r.client.Patch(ctx, object,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}
