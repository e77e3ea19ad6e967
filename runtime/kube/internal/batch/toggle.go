package batch

import (
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// toggle begins to freeze or thaw the sandboxes of a batch whose phase on record is Pausing or
// Resuming. It does not wait for the end of that.
func (r *reconciler) toggle(b *v1alpha1.BatchSandbox, at *observed, stopping bool, due *deadline) {
	if stopping {
		r.freezer.forget(client.ObjectKeyFromObject(b))
	}
	operation := operationOf(b, at.activity, stopping)
	m := r.remember(b)
	if operation == "" {
		m.refusing = nil
		return
	}
	last := m.refused
	if b.Status.Phase == v1alpha1.PhasePaused && m.turned.After(last) {
		last = m.turned // what has taken execd's place may agree, and report the opposite
	}
	if wait := last.Add(freezeInterval).Sub(at.now); wait > 0 {
		due.in(at.now, wait)
		return
	}
	var daemons []daemon
	for number := range at.sandboxes {
		s := &at.sandboxes[number]
		switch {
		case b.Status.Ended(number) || s.ended:
		case operation == "freeze" && (s.pod == nil || s.pod.Status.PodIP == ""):
			// It would run in a batch that is Paused once it has a pod.
			at.frozen = freezing{tried: true, err: fmt.Errorf("sandbox %d has no pod yet", number)}
			due.in(at.now, freezeInterval)
			return
		case s.pod != nil && s.pod.Status.PodIP != "": // without one it has not been frozen
			daemons = append(daemons, daemon{number, s.pod.UID, s.pod.Status.PodIP,
				r.execdToken(b, number, s.pod)})
		}
	}
	at.frozen = r.freezer.do(b, operation, daemons)
	if at.frozen.tried { // what was known of its activity is older
		r.idleWatches.forget(client.ObjectKeyFromObject(b))
		if b.Status.Phase == v1alpha1.PhasePaused {
			m.turned = at.now
			due.in(at.now, 0) // no change of the status has it followed again
		}
	}
	if at.frozen.err != nil && !errors.Is(at.frozen.err, errBusy) {
		m.refused = at.now
		due.in(at.now, freezeInterval)
	}
	at.tolerant = operation != "freeze" && operation != "thaw"
	if at.frozen.tried {
		m.refusing = giveUp(at, m.refusing)
	}
}

// operationOf returns what execd is to do next, as the last part of its path with the query, and
// nothing where it is to do nothing.
func operationOf(b *v1alpha1.BatchSandbox, now activity, stopping bool) string {
	phase, reason := b.Status.Phase, b.Status.Reason
	switch {
	case stopping:
	case phase == v1alpha1.PhasePausing && b.Spec.Pause:
		return "freeze"
	case phase == v1alpha1.PhasePausing && sleeps(reason) && b.Spec.Sleep != nil:
		return sleepOperation(b)
	case phase == v1alpha1.PhasePaused && sleeps(reason) && !b.Spec.Pause && b.Spec.Sleep != nil &&
		now.asleep && now.wakes != b.Spec.Sleep.AutoResume:
		return fmt.Sprintf("freeze?idleMilliseconds=%d&wake=%t", leastIdle, b.Spec.Sleep.AutoResume)
	case phase == v1alpha1.PhaseResuming && !b.Spec.Pause:
		return "thaw"
	}
	return ""
}

// giveUp fails the sandboxes whose execds have responded for stuckAfter that they cannot freeze or
// thaw. The map before and the result have since when each of them does, by its number. An execd
// that does not respond is waited for: its node may come back.
func giveUp(at *observed, before map[int]time.Time) map[int]time.Time {
	since := make(map[int]time.Time)
	if at.tolerant {
		return since
	}
	for number, err := range at.frozen.refused {
		since[number] = at.now
		if earlier, ok := before[number]; ok {
			since[number] = earlier
		}
		if at.now.Sub(since[number]) > stuckAfter {
			s := &at.sandboxes[number]
			s.usable, s.ended, s.failed = false, true, true
			s.reason, s.message = v1alpha1.ReasonContainerError, err.Error()
		}
	}
	return since
}
