package view

import (
	"testing"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// TestStopAnnotation: it ends a sandbox whose phase does not say so yet, unless it is empty: then
// the controller ends nothing either.
func TestStopAnnotation(t *testing.T) {
	for stop, want := range map[string]lifecycle.State{
		"": lifecycle.StateRunning, v1alpha1.ReasonUserDelete: lifecycle.StateStopping,
	} {
		b := new(v1alpha1.BatchSandbox)
		b.Status.Phase = v1alpha1.PhaseRunning
		b.Annotations = map[string]string{v1alpha1.AnnotationStop: stop}
		if got := status(b, time.Now()); got.State != want {
			t.Errorf("with the annotation %q it is %+v, not %s", stop, got, want)
		}
	}
}

// TestMessages: every state has a message, also where the controller writes none.
func TestMessages(t *testing.T) {
	for _, test := range []struct {
		phase         v1alpha1.Phase
		reason, wrote string
		want          string
	}{
		{"", "", "", "accepted"},
		{v1alpha1.PhasePending, v1alpha1.ReasonProvisioning, "", "accepted"},
		{v1alpha1.PhasePending, v1alpha1.ReasonProvisioning, "waits for a node", "waits for a node"},
		{v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "", "execd answers"},
		{v1alpha1.PhasePausing, v1alpha1.ReasonUserPause, "", "paused by a client"},
		{v1alpha1.PhasePausing, v1alpha1.ReasonUserPause, "execd does not answer", "execd does not answer"},
		{v1alpha1.PhasePaused, v1alpha1.ReasonUserPause, "", "frozen; its memory is retained"},
		{v1alpha1.PhaseResuming, v1alpha1.ReasonUserResume, "", "resumed by a client"},
		{v1alpha1.PhaseStopping, v1alpha1.ReasonUserDelete, "", "deleted by a client"},
		{v1alpha1.PhaseStopping, "MAINTENANCE", "", "stopped by the annotation " + v1alpha1.AnnotationStop},
		{v1alpha1.PhaseStopping, v1alpha1.ReasonExpired, "expired at noon", "expired at noon"},
		{v1alpha1.PhaseTerminated, v1alpha1.ReasonUserDelete, "", "deleted by a client"},
	} {
		b := new(v1alpha1.BatchSandbox)
		b.Spec.Pause = test.phase == v1alpha1.PhasePausing || test.phase == v1alpha1.PhasePaused
		b.Status.Phase, b.Status.Reason, b.Status.Message = test.phase, test.reason, test.wrote
		got := status(b, time.Now())
		if got.Message != test.want || test.phase != "" && got.State != lifecycle.State(test.phase) {
			t.Errorf("%s, %s, %q: %+v, want %q", test.phase, test.reason, test.wrote, got, test.want)
		}
	}
}
