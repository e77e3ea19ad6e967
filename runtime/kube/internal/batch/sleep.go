package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

const (
	// shortestAwake is how long a batch must have been Running until it falls asleep, also where
	// execd says that it sleeps already: else one sandbox could have its status written many times
	// per second.
	shortestAwake = time.Second
	// leastIdle is the shortest time that execd takes as one in which nothing kept the sandbox
	// awake, in milliseconds.
	leastIdle = 10
)

// sleeps reports whether a batch that is Pausing or Paused for the reason sleeps: its execd may
// wake it.
func sleeps(reason string) bool {
	return reason == v1alpha1.ReasonIdle || reason == v1alpha1.ReasonTimeout
}

// sleepOperation is what lets a sandbox fall asleep whose phase on record is Pausing.
func sleepOperation(b *v1alpha1.BatchSandbox) string {
	wake := b.Spec.Sleep.AutoResume
	switch {
	case b.Status.Reason == v1alpha1.ReasonTimeout:
		return fmt.Sprintf("freeze?wake=%t", wake)
	case b.Spec.Sleep.Idle == nil:
		return "" // it was taken back meanwhile
	}
	return fmt.Sprintf("freeze?idleMilliseconds=%d&wake=%t", b.Spec.Sleep.Idle.Milliseconds, wake)
}

// expires reports whether the time of a batch is up.
func expires(b *v1alpha1.BatchSandbox, now time.Time) bool {
	return b.Spec.ExpireTime != nil && !now.Before(b.Spec.ExpireTime.Time)
}

// sleepsAtTimeout reports whether a batch falls asleep when its time is up. It does so once: if it
// was not awake since, it ends.
func sleepsAtTimeout(b *v1alpha1.BatchSandbox) bool {
	if b.Spec.Sleep == nil || b.Spec.Sleep.Timeout == nil ||
		b.Annotations[v1alpha1.AnnotationTimedOut] != "" {
		return false
	}
	switch b.Status.Phase {
	case v1alpha1.PhaseRunning, v1alpha1.PhasePausing, v1alpha1.PhasePaused, v1alpha1.PhaseResuming:
		return true
	}
	return false
}

// passTimeout records that the time of a batch is up that falls asleep then, and when it ends; once
// the batch runs again, how long it lives from then on. It changes the batch to what is written.
func (r *reconciler) passTimeout(ctx context.Context, b *v1alpha1.BatchSandbox,
	now time.Time) error {
	var timedOut *string // nil removes the annotation
	var seconds int64    // 0 leaves the time
	switch {
	case b.DeletionTimestamp != nil || b.Annotations[v1alpha1.AnnotationStop] != "":
		return nil
	case expires(b, now) && sleepsAtTimeout(b):
		timedOut, seconds = new(now.UTC().Format(time.RFC3339)), b.Spec.Sleep.Timeout.KeptSeconds
	case b.Annotations[v1alpha1.AnnotationTimedOut] != "" && !expires(b, now) &&
		b.Status.Phase == v1alpha1.PhaseResuming:
		if b.Spec.Sleep != nil && b.Spec.Sleep.Timeout != nil {
			seconds = b.Spec.Sleep.Timeout.LivesSeconds
		}
	default:
		return nil
	}
	patch, err := timeoutPatch(b.ResourceVersion, timedOut, seconds, now)
	if err != nil {
		return err
	}
	changed := b.DeepCopy()
	if err := r.client.Patch(ctx, changed, patch); err != nil {
		return written(err)
	}
	*b = *changed
	return nil
}

// timeoutPatch returns what changes the annotation of a batch whose time is up, and the time. It is
// no difference of two batches: one from the cache may have no other annotation, and a difference
// that takes the last one away takes away those as well that [TrimBatch] left out.
func timeoutPatch(version string, timedOut *string, seconds int64, now time.Time) (client.Patch,
	error) {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": version,
		"annotations":     map[string]*string{v1alpha1.AnnotationTimedOut: timedOut},
	}}
	if seconds > 0 {
		at := now.Add(time.Duration(seconds) * time.Second).Truncate(time.Second)
		patch["spec"] = map[string]any{"expireTime": metav1.Time{Time: at}}
	}
	text, err := json.Marshal(patch)
	return client.RawPatch(types.MergePatchType, text), err
}

// follow adds to at what execd says of a sandbox that may fall asleep, or that sleeps.
// Of one that is being frozen or thawed nothing is followed: what is done last decides.
func (r *reconciler) follow(b *v1alpha1.BatchSandbox, at *observed, stopping bool, due *deadline) {
	key := client.ObjectKeyFromObject(b)
	asleep := b.Status.Phase == v1alpha1.PhasePaused && sleeps(b.Status.Reason)
	awake := b.Status.Phase == v1alpha1.PhaseRunning && b.Spec.Sleep != nil && b.Spec.Sleep.Idle != nil
	if stopping || b.Spec.Pause || !asleep && !awake || len(at.sandboxes) != 1 {
		r.idleWatches.forget(key)
		return
	}
	s := &at.sandboxes[0]
	if s.ended || s.pod == nil || s.pod.Status.PodIP == "" || b.Status.Ended(0) {
		r.idleWatches.forget(key)
		return
	}
	quiet := int64(leastIdle)
	if b.Spec.Sleep != nil && b.Spec.Sleep.Idle != nil {
		quiet = b.Spec.Sleep.Idle.Milliseconds
	}
	at.activity = r.idleWatches.follow(b, time.Duration(quiet)*time.Millisecond,
		daemon{0, s.pod.UID, s.pod.Status.PodIP, r.execdToken(b, 0, s.pod)})
	if at.activity.full {
		due.in(at.now, resyncInterval)
	}
	if n := len(b.Status.History); awake && (at.activity.idle || at.activity.asleep) && n > 0 {
		if wait := b.Status.History[n-1].Time.Add(shortestAwake).Sub(at.now); wait > 0 {
			due.in(at.now, wait)
			at.activity.idle, at.activity.asleep = false, false
		}
	}
}

// fallAsleep begins the sleep, or the end, of a sandbox that is idle or whose time is up, and
// reports whether it has.
func (d *decision) fallAsleep() bool {
	sleep := d.batch.Spec.Sleep
	switch {
	case sleep == nil:
		return false
	case sleep.Timeout != nil && d.batch.Annotations[v1alpha1.AnnotationTimedOut] != "":
		d.enterPhase(v1alpha1.PhasePausing, v1alpha1.ReasonTimeout,
			"asleep: the time of the sandbox is up")
		return true
	case sleep.Idle == nil || !d.at.activity.idle && !d.at.activity.asleep:
		return false
	case sleep.Idle.Action == v1alpha1.IdleDelete && !d.at.activity.idle:
		return false // it was put to sleep by another, and may have worked until then
	}
	message := fmt.Sprintf("no request, program or timer has kept the sandbox awake for %v",
		time.Duration(sleep.Idle.Milliseconds)*time.Millisecond)
	if sleep.Idle.Action == v1alpha1.IdleDelete {
		d.enterPhase(v1alpha1.PhaseStopping, v1alpha1.ReasonIdle, message)
	} else {
		d.enterPhase(v1alpha1.PhasePausing, v1alpha1.ReasonIdle, "asleep: "+message)
	}
	return true
}

// completeSleep ends Pausing once the sandbox sleeps, or runs on.
func (d *decision) completeSleep() {
	sleep, reason, frozen := d.batch.Spec.Sleep, d.status.Reason, d.at.frozen
	switch {
	case d.batch.Spec.Pause:
		d.enterPhase(v1alpha1.PhasePausing, v1alpha1.ReasonUserPause, "")
	case sleep == nil || reason == v1alpha1.ReasonIdle && sleep.Idle == nil:
		d.enterPhase(v1alpha1.PhaseResuming, v1alpha1.ReasonWoken, "is being woken")
	case !frozen.tried:
	case frozen.err == nil:
		d.enterPhase(v1alpha1.PhasePaused, reason, d.status.Message)
	case reason == v1alpha1.ReasonTimeout && !errors.Is(frozen.err, errBusy):
		d.explain(reason, frozen.err.Error()) // it is tried again
	default:
		d.enterPhase(v1alpha1.PhaseResuming, v1alpha1.ReasonWoken,
			"runs on: "+frozen.err.Error())
	}
}

// sleepOn ends the sleep of a sandbox whose execd says so. A pause of one that sleeps makes it one
// that nothing wakes.
func (d *decision) sleepOn() {
	switch {
	case d.batch.Spec.Pause:
		d.enterPhase(v1alpha1.PhasePausing, v1alpha1.ReasonUserPause, "")
	case d.at.activity.known && !d.at.activity.asleep:
		d.enterPhase(v1alpha1.PhaseResuming, v1alpha1.ReasonWoken, "is being woken")
	}
}
