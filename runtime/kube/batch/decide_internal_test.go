package batch

import (
	"testing"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestStopAnnotation: its value is the reason of the end, and an empty one ends nothing.
func TestStopAnnotation(t *testing.T) {
	for _, want := range []string{"", v1alpha1.ReasonUserDelete} {
		b := new(v1alpha1.BatchSandbox)
		b.Annotations = map[string]string{v1alpha1.AnnotationStop: want}
		if reason, _ := stopReason(b, time.Now()); reason != want {
			t.Errorf("with the annotation %q the batch stops for %q", want, reason)
		}
	}
}
