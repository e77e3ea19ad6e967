package batch

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// observed is all that a decision depends on, besides the batch itself.
type observed struct {
	now time.Time
	// by number; of those that have ended before, only what the letter says is true
	sandboxes []sandbox
	tasks     []TaskState // by number; nil without a task template
	// by number, also those that are not wanted: a pod exists, or the allocation names one
	held            []bool
	existing        int      // pods there are, whatever their state
	kept            int      // of these, those that stay after the end of the batch, for their logs
	missing         *refusal // why pods are missing, where something refuses to give them
	frozen          freezing // the result of a try to freeze or thaw
	activity        activity // what execd says of a sandbox that may fall asleep
	tolerant        bool     // a sandbox that is not frozen runs on
	stopped         bool     // nothing of the batch runs any more, as far as can be known
	unreachableNode string   // a node that does not report whether a pod that it has runs
}

// holds reports whether a number has a pod.
func (at *observed) holds(number int) bool { return number < len(at.held) && at.held[number] }

// refusal is why a pod cannot be had.
type refusal struct {
	reason, message string
	invalid         bool // by a rule: waiting does not help
}

// freezing is the result of a try to freeze or thaw all sandboxes of a batch.
type freezing struct {
	tried   bool
	err     error         // of the first sandbox that was not frozen or thawed
	refused map[int]error // what execds answered instead of doing it, by the sandboxes' numbers
}

// decide returns the status of the batch for what was observed. It changes nothing.
func decide(b *v1alpha1.BatchSandbox, at observed) v1alpha1.BatchSandboxStatus {
	d := decision{batch: b, at: at, status: *b.Status.DeepCopy()}
	d.tally()
	if d.status.Phase == "" {
		d.enterPhase(v1alpha1.PhasePending, v1alpha1.ReasonProvisioning, "")
	}
	d.advancePhase()
	d.setConditions()
	d.status.ObservedGeneration = b.Generation
	return d.status
}

// decision is a status while it is put together.
type decision struct {
	batch  *v1alpha1.BatchSandbox
	at     observed
	status v1alpha1.BatchSandboxStatus

	live, usable int
	problem      *sandbox // what keeps the first sandbox that is not usable
	problemAt    int
}

// mustWriteNow reports whether a change of the status must be written without waiting for the
// interval: every change but those of numbers, new addresses, and reason and message of a phase
// that stays.
func mustWriteNow(before, after *v1alpha1.BatchSandboxStatus) bool {
	for i, address := range before.Addresses {
		if address != "" && (i >= len(after.Addresses) || after.Addresses[i] == "") {
			return true // the pod may go now: it must not be missed when the number is wanted again
		}
	}
	for i := range max(len(before.Outcomes), len(after.Outcomes)) {
		was, is := outcome(before, i), outcome(after, i)
		// Pods that are given back go one by one.
		if was != is && (was != outcomeReleased || is != outcomeActive) {
			return true
		}
	}
	return before.Phase != after.Phase ||
		len(before.History) != len(after.History) ||
		len(before.Conditions) != len(after.Conditions) || before.FinishedAt == nil &&
		after.FinishedAt != nil ||
		slices.ContainsFunc(after.Conditions, func(c metav1.Condition) bool {
			return !meta.IsStatusConditionPresentAndEqual(before.Conditions, c.Type, c.Status)
		})
}

// unchanged reports whether there is nothing to write.
func unchanged(before, after *v1alpha1.BatchSandboxStatus) bool {
	return equality.Semantic.DeepEqual(before, after)
}
