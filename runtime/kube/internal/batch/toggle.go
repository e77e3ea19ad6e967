package batch

import (
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// toggle begins to freeze or thaw the sandboxes of a batch whose phase on record is Pausing or
// Resuming. It does not wait for the end of that.
func (r *reconciler) toggle(b *v1alpha1.BatchSandbox, at *observed, stopping bool, due *deadline) {
	phase := b.Status.Phase
	operation := ""
	switch {
	case stopping:
		r.freezer.forget(client.ObjectKeyFromObject(b))
	case b.Spec.Pause && phase == v1alpha1.PhasePausing:
		operation = "freeze"
	case !b.Spec.Pause && phase == v1alpha1.PhaseResuming:
		operation = "thaw"
	}
	m := r.remember(b)
	if operation == "" {
		m.refusing = nil
		return
	}
	if wait := m.refused.Add(freezeInterval).Sub(at.now); wait > 0 {
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
	if at.frozen.err != nil {
		m.refused = at.now
		due.in(at.now, freezeInterval)
	}
	if at.frozen.tried {
		m.refusing = giveUp(at, m.refusing)
	}
}

// giveUp fails the sandboxes whose execds have responded for stuckAfter that they cannot freeze or
// thaw. The map before and the result have since when each of them does, by its number. An execd
// that does not respond is waited for: its node may come back.
func giveUp(at *observed, before map[int]time.Time) map[int]time.Time {
	since := make(map[int]time.Time)
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
