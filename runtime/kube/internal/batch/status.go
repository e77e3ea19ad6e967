package batch

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// write writes a status that has changed and puts it into the object. A change of numbers alone may
// have to wait, so that the number of writes does not follow the number of sandboxes. A spec that
// has changed meanwhile makes it fail with a conflict: what was decided may be wrong then. An end
// for which the object has no room in etcd is written with as little as it needs.
func (r *reconciler) write(ctx context.Context, b *v1alpha1.BatchSandbox,
	after v1alpha1.BatchSandboxStatus, now time.Time, due *deadline) error {
	before := b.Status
	if unchanged(&before, &after) {
		return nil
	}
	m := r.remember(b)
	if wait := m.written.Add(statusInterval).Sub(now); wait > 0 && !mustWriteNow(&before, &after) {
		due.in(now, wait)
		return nil
	}
	changed := b.DeepCopy()
	changed.Status = after
	onto := client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})
	err := r.client.Status().Patch(ctx, changed, onto)
	if v1alpha1.IsTooLarge(err) && isEnd(after.Phase) {
		changed = b.DeepCopy()
		changed.Status = pared(after)
		err = r.client.Status().Patch(ctx, changed, onto)
	}
	if err != nil {
		return written(err)
	}
	m.written = now
	*b = *changed
	r.announce(b, &before, now)
	return nil
}

// isEnd reports whether the pods of a batch are not needed any more.
func isEnd(phase v1alpha1.Phase) bool {
	return phase == v1alpha1.PhaseStopping || phase.Finished()
}

// pared returns what must be on record of the end of a batch, of the history what follows its life.
func pared(status v1alpha1.BatchSandboxStatus) v1alpha1.BatchSandboxStatus {
	status.Message, status.Addresses, status.Conditions, status.TaskStats = "", nil, nil, nil
	history := status.History
	status.History = nil
	for _, change := range history {
		if isEnd(change.Phase) {
			change.Message = ""
			status.History = append(status.History, change)
		}
	}
	return status
}

// announce records events and metrics of what was just written. An event is a write, too: a batch
// causes a few, whatever its size.
func (r *reconciler) announce(b *v1alpha1.BatchSandbox, before *v1alpha1.BatchSandboxStatus,
	now time.Time) {
	after := &b.Status
	if invalid := meta.FindStatusCondition(after.Conditions,
		v1alpha1.ConditionInvalid); invalid != nil &&
		!meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionInvalid) {
		r.recordEvent(b, corev1.EventTypeWarning, "InvalidTemplate", "%s", invalid.Message)
	}
	if failed := meta.FindStatusCondition(after.Conditions,
		v1alpha1.ConditionDegraded); failed != nil &&
		!meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionDegraded) {
		r.recordEvent(b, corev1.EventTypeWarning, "SandboxFailed", "%s: %s", failed.Reason,
			failed.Message)
	}
	if before.Phase == after.Phase {
		return
	}
	created := b.CreationTimestamp.Time
	switch after.Phase {
	case v1alpha1.PhaseRunning:
		if before.Phase == "" || before.Phase == v1alpha1.PhasePending {
			r.Metrics.started(b, now.Sub(created))
		}
	case v1alpha1.PhasePaused:
		r.recordEvent(b, corev1.EventTypeNormal, "Paused", "%d sandboxes are frozen",
			after.Allocated)
	case v1alpha1.PhaseStopping:
		r.Metrics.stopping(b, now)
		if after.Reason == v1alpha1.ReasonExpired {
			r.recordEvent(b, corev1.EventTypeNormal, "Expired", "%s", after.Message)
		} else {
			r.recordEvent(b, corev1.EventTypeNormal, "Stopping", "%s %s", after.Reason,
				after.Message)
		}
	case v1alpha1.PhaseTerminated:
		r.Metrics.finished(after)
	case v1alpha1.PhaseFailed:
		r.Metrics.finished(after)
		r.recordEvent(b, corev1.EventTypeWarning, "Failed", "%s: %s", after.Reason, after.Message)
	}
}

// maxNote is what the API server takes of an event's text, in bytes.
const maxNote = 1000

// recordEvent records an event that `kubectl describe` shows.
func (r *reconciler) recordEvent(b *v1alpha1.BatchSandbox, kind, reason, format string,
	args ...any) {
	for i, arg := range args {
		if text, ok := arg.(string); ok && len(text) > maxNote/2 {
			args[i] = text[:maxNote/2] + "..."
		}
	}
	r.events.Eventf(b, nil, kind, reason, "Reconcile", format, args...)
}
