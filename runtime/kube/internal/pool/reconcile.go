package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sandbox.internal/runtime/kube/v1alpha1"
)

const (
	// how long a batch that could have a part of its pods waits for more of them
	patience       = 250 * time.Millisecond
	statusEvery    = 500 * time.Millisecond // the status of a pool is written at most this often
	resyncInterval = time.Minute            // a pool is reconciled even without an event
	longestHold    = 5 * time.Minute
)

// delay holds up the making of pods that end by themselves.
type delay struct {
	failures int
	until    time.Time
}

// Reconcile makes a pool what its spec says.
func (p *Pools) Reconcile(ctx context.Context,
	request reconcile.Request) (reconcile.Result, error) {
	if err := p.load(ctx); err != nil {
		return reconcile.Result{}, err
	}
	key := request.NamespacedName
	var pool v1alpha1.Pool
	if err := p.client.Get(ctx, key, &pool); err != nil {
		if apierrors.IsNotFound(err) {
			p.forget(key)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, err
	}
	auditing := p.audit(ctx, key) // one batch that cannot be read holds up no other
	if pool.DeletionTimestamp != nil {
		if auditing != nil {
			return reconcile.Result{}, auditing
		}
		return p.terminate(ctx, &pool, p.ledger.podsOf(key))
	}
	if controllerutil.AddFinalizer(&pool, v1alpha1.PoolFinalizer) {
		base := pool.DeepCopy()
		controllerutil.RemoveFinalizer(base, v1alpha1.PoolFinalizer)
		if err := p.patch(ctx, &pool, base); err != nil {
			err = fmt.Errorf("finalizer of pool %s: %w", pool.Name, err)
			return reconcile.Result{}, errors.Join(err, p.unserved(ctx, base, err))
		}
	}

	if ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady); ready != nil &&
		ready.Reason == v1alpha1.NotServed {
		p.enqueueAll(key) // they need not wait for what is refused
	}
	now := time.Now()
	revision := p.revision(&pool)
	v := p.ledger.view(key, revision, now)
	hold := p.hold(key, v.unwanted, now)
	working := p.work(ctx, &pool, revision, &v, hold)
	again := resyncInterval
	soon := func(d time.Duration) {
		if d > 0 {
			again = min(again, d)
		}
	}
	soon(hold)
	if !v.expires.IsZero() {
		soon(v.expires.Sub(now))
	}
	due, later := p.ledger.due(key, v.idle, now, patience)
	soon(later)
	for _, batch := range due {
		p.options.Enqueue(batch.Namespace, batch.Name)
	}
	if pool.Status.ObservedGeneration != pool.Generation {
		p.enqueueAll(key) // their status about the pool may be out of date
	}
	p.metrics.counted(key, limitsOf(pool.Spec), v.podCounts)
	dropping := p.dropHandovers(ctx, &pool, now)
	wait, err := p.writeStatus(ctx, &pool, revision, &v, working, now)
	soon(wait)
	if err := errors.Join(working, dropping, auditing, err); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// work makes and removes pods, and changes the view to what it has done.
func (p *Pools) work(ctx context.Context, pool *v1alpha1.Pool, revision string, v *view,
	hold time.Duration) error {
	if len(v.unwanted)+len(v.old) > 0 {
		if _, err := p.removePods(ctx, slices.Concat(v.unwanted, v.old)); err != nil {
			return err
		}
	}
	if checkTemplate(pool) != nil {
		return nil // there is nothing to try again, and the status says why
	}
	d := decide(limitsOf(pool.Spec), v.podCounts)
	if d.make > 0 && hold <= 0 {
		made, err := p.makePods(ctx, pool, revision, d.make)
		if made > 0 {
			p.events.Eventf(pool, nil, corev1.EventTypeNormal, "PodsCreated", "Scale",
				"Created %d pods: %d are ready, batches lack %d", made, v.ready, v.want)
		}
		if err != nil {
			p.events.Eventf(pool, nil, corev1.EventTypeWarning, "PodsNotCreated", "Scale",
				"Pods cannot be created: %s", err)
			return fmt.Errorf("make pods for pool %s: %w", pool.Name, err)
		}
		v.starting += made
	}
	if d.remove > 0 {
		n, err := p.removePods(ctx, p.ledger.surplus(client.ObjectKeyFromObject(pool), revision, d.remove))
		if n > 0 {
			p.events.Eventf(pool, nil, corev1.EventTypeNormal, "PodsRemoved", "Scale",
				"Removed %d pods: more waited than capacitySpec allows", n)
		}
		if err != nil {
			return fmt.Errorf("remove pods of pool %s: %w", pool.Name, err)
		}
	}
	if d.replace > 0 {
		n, err := p.removePods(ctx, p.ledger.staleOf(client.ObjectKeyFromObject(pool), revision, d.replace))
		if n > 0 {
			p.events.Eventf(pool, nil, corev1.EventTypeNormal, "PodsReplaced", "Update",
				"Removed %d pods from an older template than %s", n, revision)
		}
		if err != nil {
			return fmt.Errorf("replace pods of pool %s: %w", pool.Name, err)
		}
	}
	return nil
}

// hold returns how long no pods are to be made, because some ended by themselves before a batch
// used them.
func (p *Pools) hold(key types.NamespacedName, unwanted []*corev1.Pod,
	now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.delays[key]
	ended := slices.ContainsFunc(unwanted, func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp == nil &&
			(pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded)
	})
	switch {
	case ended && (d == nil || now.After(d.until.Add(2*longestHold))):
		d = &delay{until: now.Add(time.Second)}
		p.delays[key] = d
	case ended && now.After(d.until):
		d.failures = min(d.failures+1, 20)
		d.until = now.Add(min(time.Second<<d.failures, longestHold))
	}
	if d == nil {
		return 0
	}
	return max(d.until.Sub(now), 0)
}

// terminate removes the finalizer of a pool that is being deleted once no batch has pods of it.
func (p *Pools) terminate(ctx context.Context, pool *v1alpha1.Pool,
	pods []*corev1.Pod) (reconcile.Result, error) {
	key := client.ObjectKeyFromObject(pool)
	p.enqueueAll(key)
	var waiting []*corev1.Pod
	for _, pod := range pods {
		if p.ledger.isUnallocated(pod) {
			waiting = append(waiting, pod)
		}
	}
	if _, err := p.removePods(ctx, waiting); err != nil {
		return reconcile.Result{}, fmt.Errorf("remove pods of pool %s: %w", pool.Name, err)
	}
	// An Allocate that has read the Pool before it was deleted may have taken one of them until
	// then.
	v := p.ledger.view(key, "", time.Now())
	p.metrics.counted(key, limits{}, v.podCounts)
	if v.given {
		return reconcile.Result{RequeueAfter: resyncInterval}, nil
	}
	base := pool.DeepCopy()
	if controllerutil.RemoveFinalizer(pool, v1alpha1.PoolFinalizer) {
		if !p.options.Lease.Held() {
			return reconcile.Result{}, ErrNotLeading
		}
		if err := p.patch(ctx, pool, base); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("finalizer of pool %s: %w", pool.Name, err)
		}
	}
	return reconcile.Result{}, nil
}

// forget removes what is kept for a pool that is gone.
func (p *Pools) forget(key types.NamespacedName) {
	p.enqueueAll(key)
	p.metrics.forget(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reported, key)
	delete(p.delays, key)
	delete(p.audited, key)
	delete(p.revisions, key)
}

// enqueueAll enqueues the batches that wait for a pool.
func (p *Pools) enqueueAll(key types.NamespacedName) {
	for _, batch := range p.ledger.waiters(key) {
		p.options.Enqueue(batch.Namespace, batch.Name)
	}
}

// audit resolves writes with unknown outcome, and finds batches that are gone although no watch has
// delivered that.
func (p *Pools) audit(ctx context.Context, pool types.NamespacedName) error {
	p.mu.Lock()
	all := time.Since(p.audited[pool]) >= resyncInterval // there may be many, and each is read
	if all {
		p.audited[pool] = time.Now()
	}
	p.mu.Unlock()
	var failed []error
	for uid, key := range p.ledger.batchesOf(pool, all) {
		if _, err := p.resolveUncertainWrite(ctx, key, uid); err != nil {
			failed = append(failed, err)
			continue
		}
		var cached v1alpha1.BatchSandbox
		err := p.client.Get(ctx, key, &cached, client.UnsafeDisableDeepCopy)
		if err == nil && cached.UID == uid {
			continue
		}
		live, err := p.read(ctx, key)
		switch {
		case apierrors.IsNotFound(err) || err == nil && live.UID != uid:
			p.ledger.batchDeleted(uid)
		case err != nil:
			failed = append(failed, fmt.Errorf("BatchSandbox %s: %w", key.Name, err))
		}
	}
	return errors.Join(failed...)
}

// writeStatus writes the status, if it has changed, and returns how long to wait when it was
// written a moment ago.
func (p *Pools) writeStatus(ctx context.Context, pool *v1alpha1.Pool, revision string, v *view,
	working error, now time.Time) (time.Duration, error) {
	base := pool.DeepCopy()
	s := &pool.Status
	s.ObservedGeneration = pool.Generation
	s.Total = int32(v.total())
	s.Allocated = int32(v.allocated)
	s.Available = int32(v.ready)
	s.Updated = int32(v.updated)
	s.Revision = revision
	for _, condition := range conditionsOf(pool, v, working) {
		condition.ObservedGeneration = pool.Generation
		meta.SetStatusCondition(&s.Conditions, condition)
	}
	if equality.Semantic.DeepEqual(&base.Status, s) {
		return 0, nil
	}
	key := client.ObjectKeyFromObject(pool)
	p.mu.Lock()
	wait := statusEvery - now.Sub(p.reported[key])
	if wait <= 0 {
		p.reported[key] = now
	}
	p.mu.Unlock()
	if wait > 0 {
		return wait, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := p.client.Status().Patch(ctx, pool,
		client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("status of pool %s: %w", pool.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("status written", "total", s.Total, "allocated", s.Allocated,
		"available", s.Available)
	return 0, nil
}

// unserved writes into the status of a pool for which nothing could be done what the API server has
// against that.
func (p *Pools) unserved(ctx context.Context, pool *v1alpha1.Pool, why error) error {
	if !refusal(why) {
		return nil // it is tried again
	}
	p.events.Eventf(pool, nil, corev1.EventTypeWarning, "NotServed", "Reconcile",
		"The Pool cannot be served: %s", why)
	base := pool.DeepCopy()
	meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.NotServed,
		Message: why.Error(), ObservedGeneration: pool.Generation,
	})
	if equality.Semantic.DeepEqual(&base.Status, &pool.Status) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := p.client.Status().Patch(ctx, pool,
		client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("status of pool %s: %w", pool.Name, err)
	}
	return nil
}

func conditionsOf(pool *v1alpha1.Pool, v *view, working error) []metav1.Condition {
	invalid := metav1.Condition{Type: v1alpha1.ConditionInvalid, Status: metav1.ConditionFalse,
		Reason: "Valid"}
	if err := checkTemplate(pool); err != nil {
		invalid.Status, invalid.Reason, invalid.Message = metav1.ConditionTrue, "InvalidTemplate",
			err.Error()
	} else if apierrors.IsInvalid(working) || apierrors.IsBadRequest(working) {
		invalid.Status, invalid.Reason, invalid.Message = metav1.ConditionTrue, "PodsRefused",
			working.Error()
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue,
		Reason: "BufferFilled"}
	l := limitsOf(pool.Spec)
	switch {
	case refusal(working):
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.NotServed,
			working.Error()
	case v.ready < l.buffer(v.podCounts):
		ready.Status, ready.Reason = metav1.ConditionFalse, "BufferLow"
		ready.Message = fmt.Sprintf("fewer pods are ready than bufferMin, %d, and poolMax ask for",
			l.bufferMin)
	case v.want > 0 && v.allocated+v.leaving >= l.poolMax:
		ready.Status, ready.Reason = metav1.ConditionFalse, "PoolMaxReached"
		ready.Message = fmt.Sprintf(
			"batches wait for pods, and there are as many as poolMax, %d, allows", l.poolMax)
	}
	return []metav1.Condition{invalid, ready}
}
