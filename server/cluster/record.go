package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// Labels and annotations of BatchSandboxes that are sandboxes of the service.
const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "sandbox-server"

	annotationRecord   = lifecycle.LabelPrefix + "record"         // record, as JSON
	annotationMetadata = lifecycle.LabelPrefix + "metadata"       // the sandbox's metadata, as JSON
	annotationPolicy   = lifecycle.LabelPrefix + "network-policy" // the policy last set, as JSON
	annotationExpires  = lifecycle.LabelPrefix + "expires-at"     // spec.expireTime, with the fraction of the second that it cannot hold
	annotationAsked    = lifecycle.LabelPrefix + "asked-at"       // when a client asked last for a pause, a resume or the end
	annotationTouched  = lifecycle.LabelPrefix + "touched-at"     // when a client asked last for anything
)

// record is what the rest of the resource does not tell. It does not change.
type record struct {
	Owner      string    `json:"owner,omitempty"`
	Image      string    `json:"image"`
	Entrypoint []string  `json:"entrypoint"`
	CreatedAt  time.Time `json:"createdAt"`
	Extensions []byte    `json:"extensions,omitempty"` // base64 in JSON, so that no byte changes
	// Digest is the request's, for a repetition with the same Idempotency-Key.
	Digest string `json:"digest,omitempty"`
}

// newEntry reads a resource. It returns an error for one that is not a sandbox of the service.
func newEntry(b *v1alpha1.BatchSandbox) (*entry, error) {
	e := &entry{version: versionOf(b.ResourceVersion), batch: b, tokens: new(tokens)}
	if err := json.Unmarshal([]byte(b.Annotations[annotationRecord]), &e.record); err != nil {
		return nil, fmt.Errorf("annotation %s of BatchSandbox %s: %w", annotationRecord, b.Name, err)
	}
	e.sandbox = lifecycle.Sandbox{
		ID:         b.Name,
		Image:      e.record.Image,
		Entrypoint: e.record.Entrypoint,
		Owner:      e.record.Owner,
		Extensions: e.record.Extensions,
		CreatedAt:  e.record.CreatedAt.UTC(),
		ExpiresAt:  expiry(b),
		Status:     status(b, e.record.CreatedAt.UTC()),
	}
	if text, ok := b.Annotations[annotationMetadata]; ok {
		if err := json.Unmarshal([]byte(text), &e.sandbox.Metadata); err != nil {
			return nil, fmt.Errorf("annotation %s of BatchSandbox %s: %w", annotationMetadata, b.Name, err)
		}
	}
	e.sandbox.Reach(lifecycle.StageAccepted, e.sandbox.CreatedAt)
	for _, change := range b.Status.History {
		if change.Phase == v1alpha1.PhaseRunning {
			e.sandbox.Reach(lifecycle.StageReady, change.Time.Time)
			break
		}
	}
	return e, nil
}

// status is where a sandbox stands: the phase, and what a client has asked for that the controller has not begun yet.
func status(b *v1alpha1.BatchSandbox, created time.Time) lifecycle.Status {
	s := lifecycle.Status{
		State:            lifecycle.State(b.Status.Phase),
		Reason:           lifecycle.Reason(b.Status.Reason),
		Message:          b.Status.Message,
		LastTransitionAt: created,
	}
	if n := len(b.Status.History); n > 0 {
		s.LastTransitionAt = b.Status.History[n-1].Time.UTC()
	}
	if s.State == lifecycle.StateRunning && s.Message == "" {
		s.Message = "execd answers"
	}
	if b.Status.Phase == "" {
		s.State, s.Reason, s.Message = lifecycle.StatePending, lifecycle.ReasonProvisioning, "accepted"
	}
	if b.Status.Phase.Finished() {
		return s
	}
	asked := s.LastTransitionAt
	if at, err := time.Parse(time.RFC3339Nano, b.Annotations[annotationAsked]); err == nil && at.After(asked) {
		asked = at.UTC()
	}
	stop, stopped := b.Annotations[v1alpha1.AnnotationStop]
	switch {
	case s.State == lifecycle.StateStopping:
	case b.DeletionTimestamp != nil:
		return lifecycle.Status{State: lifecycle.StateStopping, Reason: lifecycle.ReasonUserDelete,
			Message: "the BatchSandbox is being deleted", LastTransitionAt: b.DeletionTimestamp.UTC()}
	case stopped:
		return lifecycle.Status{State: lifecycle.StateStopping, Reason: lifecycle.Reason(stop), Message: "deleted by a client", LastTransitionAt: asked}
	case b.Spec.Pause && s.State == lifecycle.StateRunning:
		return lifecycle.Status{State: lifecycle.StatePausing, Reason: lifecycle.ReasonUserPause, Message: "paused by a client", LastTransitionAt: asked}
	case !b.Spec.Pause && s.State == lifecycle.StatePaused:
		return lifecycle.Status{State: lifecycle.StateResuming, Reason: lifecycle.ReasonUserResume, Message: "resumed by a client", LastTransitionAt: asked}
	}
	return s
}

// expiry is when the sandbox ends. The resource has whole seconds; the annotation has the rest, as long as it speaks of the same second.
func expiry(b *v1alpha1.BatchSandbox) time.Time {
	if b.Spec.ExpireTime == nil {
		return time.Time{}
	}
	at := b.Spec.ExpireTime.UTC()
	if exact, err := time.Parse(time.RFC3339Nano, b.Annotations[annotationExpires]); err == nil && wholeSeconds(exact).Equal(at) {
		return exact.UTC()
	}
	return at
}

// wholeSeconds rounds up: a sandbox does not end before its time.
func wholeSeconds(t time.Time) time.Time {
	if cut := t.Truncate(time.Second); cut.Before(t) {
		return cut.Add(time.Second)
	}
	return t
}

// setExpiry writes the expiry into a resource.
func setExpiry(b *v1alpha1.BatchSandbox, at time.Time) {
	b.Spec.ExpireTime = &metav1.Time{Time: wholeSeconds(at)}
	b.Annotations[annotationExpires] = at.UTC().Format(time.RFC3339Nano)
}

// annotate writes a value as JSON into an annotation.
func annotate(b *v1alpha1.BatchSandbox, name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", name, err)
	}
	b.Annotations[name] = string(text)
	return nil
}

// maxAnnotations is what the API server allows all annotations of an object, and a margin for the controller's own.
const maxAnnotations = 256<<10 - 16<<10

// checkSize refuses what the API server would not take.
func checkSize(b *v1alpha1.BatchSandbox) error {
	total := 0
	for name, value := range b.Annotations {
		total += len(name) + len(value)
	}
	if total > maxAnnotations {
		return lifecycle.Invalidf("metadata, extensions, entrypoint and networkPolicy: on a cluster they must have at most %d bytes together as JSON, and have %d",
			maxAnnotations, total)
	}
	return nil
}

// guarded reports whether the sandbox has an egress sidecar.
func (e *entry) guarded() bool {
	return e.batch.Spec.Template != nil && slices.ContainsFunc(e.batch.Spec.Template.Spec.InitContainers,
		func(c corev1.Container) bool { return c.Name == containerEgress })
}

// address is the pod's IP address, empty while there is none.
func (e *entry) address() string {
	if len(e.batch.Status.Addresses) == 0 {
		return ""
	}
	return e.batch.Status.Addresses[0]
}
