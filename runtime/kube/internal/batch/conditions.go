package batch

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// setConditions sets Ready and Invalid.
func (d *decision) setConditions() {
	switch {
	case d.status.Phase == v1alpha1.PhaseRunning && d.usable == d.live &&
		d.live == int(d.batch.Spec.Replicas):
		d.setCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, d.runningReason(), "")
	default:
		d.setCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, d.status.Reason, "")
	}
	if d.at.missing != nil && d.at.missing.invalid {
		d.setCondition(v1alpha1.ConditionInvalid, metav1.ConditionTrue, d.at.missing.reason,
			truncate(d.at.missing.message))
	}
}

// recordFailure records, in the condition Degraded, how the first sandbox failed.
func (d *decision) recordFailure(number int, reason, message string) {
	if meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionDegraded) {
		return
	}
	if d.batch.Spec.Replicas > 1 {
		message = fmt.Sprintf("sandbox %d: %s", number, message)
	}
	d.setCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, reason, truncate(message))
}

// clearCondition makes a condition that was true false.
func (d *decision) clearCondition(kind, reason string) {
	if meta.IsStatusConditionTrue(d.status.Conditions, kind) {
		d.setCondition(kind, metav1.ConditionFalse, reason, "")
	}
}

func (d *decision) setCondition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: conditionReason(reason), Message: message,
		ObservedGeneration: d.batch.Generation, LastTransitionTime: metav1.NewTime(d.at.now),
	})
}

// conditionReason ensures the form that the API server requires of a reason: any client of
// the API server may write the stop annotation.
func conditionReason(reason string) string {
	for i, c := range reason {
		letter := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || !(c >= '0' && c <= '9') && c != '_') || i == len(reason)-1 &&
			c == '_' {
			return "Other"
		}
	}
	if reason == "" || len(reason) > 1024 {
		return "Other"
	}
	return reason
}
