package view

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/lifecycle"
)

// Entry is a sandbox as one version of its resource shows it. It is shared and must not be changed.
type Entry struct {
	Version uint64
	// Batch is the resource without what [trim] drops.
	Batch   *v1alpha1.BatchSandbox
	Record  Record
	Sandbox lifecycle.Sandbox

	tokens *tokens // shared with the other versions
}

// Record is what a client asked for and the rest of the resource does not hold. It does not change.
type Record struct {
	Owner      string    `json:"owner,omitempty"`
	Image      string    `json:"image"`
	Entrypoint []string  `json:"entrypoint"`
	CreatedAt  time.Time `json:"createdAt"`
	Extensions []byte    `json:"extensions,omitempty"` // base64 in JSON, so that no byte changes
	// RuntimeClass is the name of the class in the request.
	RuntimeClass string `json:"runtimeClass,omitempty"`
	// Resources are the sandbox's limits, for those of its owner.
	Resources lifecycle.ResourceLimits `json:"resources,omitempty"`
	// Lives is how long the sandbox was to live at its creation; 0 where an earlier version created
	// it.
	Lives time.Duration `json:"lives,omitempty"`
	// Digest is the request's, for a repetition with the same Idempotency-Key.
	Digest string `json:"digest,omitempty"`
}

// NewEntry reads a resource, which becomes the entry's. It returns an error for one that is not a
// sandbox of the service.
func NewEntry(b *v1alpha1.BatchSandbox) (*Entry, error) {
	trim(b)
	e := &Entry{Version: versionOf(b.ResourceVersion), Batch: b, tokens: new(tokens)}
	if err := json.Unmarshal([]byte(b.Annotations[AnnotationRecord]), &e.Record); err != nil {
		return nil, fmt.Errorf("annotation %s of BatchSandbox %s: %w", AnnotationRecord, b.Name, err)
	}
	limits, _ := e.Record.Resources.Parse() // they were checked
	e.Sandbox = lifecycle.Sandbox{
		ID:         b.Name,
		Image:      e.Record.Image,
		Entrypoint: e.Record.Entrypoint,
		Owner:      e.Record.Owner,
		Extensions: e.Record.Extensions,
		Limits:     limits,

		RuntimeClass: e.Record.RuntimeClass,
		CreatedAt:    e.Record.CreatedAt.UTC(),
		ExpiresAt:    expiry(b),
		Status:       status(b, e.Record.CreatedAt.UTC()),
	}
	if text, ok := b.Annotations[AnnotationMetadata]; ok {
		if err := json.Unmarshal([]byte(text), &e.Sandbox.Metadata); err != nil {
			return nil, fmt.Errorf("annotation %s of BatchSandbox %s: %w", AnnotationMetadata, b.Name, err)
		}
	}
	if text, ok := b.Annotations[AnnotationSleep]; ok {
		if err := json.Unmarshal([]byte(text), &e.Sandbox.Lifecycle); err != nil {
			return nil, fmt.Errorf("annotation %s of BatchSandbox %s: %w", AnnotationSleep, b.Name, err)
		}
	}
	e.Sandbox.Reach(lifecycle.StageAccepted, e.Sandbox.CreatedAt)
	for _, change := range b.Status.History {
		if change.Phase == v1alpha1.PhaseRunning {
			e.Sandbox.Reach(lifecycle.StageReady, change.Time.Time)
			break
		}
	}
	return e, nil
}

// Size is how many bytes of text the resource has, without its status.
func (e *Entry) Size() int {
	size, _ := strconv.Atoi(e.Batch.Annotations[AnnotationSize]) // not known of a sandbox that an earlier version created
	for name, value := range e.Batch.Annotations {
		size += len(name) + len(value)
	}
	return size
}

// What a client has asked for.
const (
	messageDeleted = "deleted by a client"
	messagePaused  = "paused by a client"
	messageResumed = "resumed by a client"
)

// status is where a sandbox stands: the phase, and what a client has asked for that the controller
// has not begun yet.
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
	if s.Message == "" {
		s.Message = usualMessage(s.State, s.Reason)
	}
	if b.Status.Phase == "" {
		s.State, s.Reason, s.Message = lifecycle.StatePending, lifecycle.ReasonProvisioning, "accepted"
	}
	if b.Status.Phase.Finished() {
		return s
	}
	asked := s.LastTransitionAt
	if at, err := time.Parse(time.RFC3339Nano, b.Annotations[AnnotationAsked]); err == nil && at.After(asked) {
		asked = at.UTC()
	}
	stop := b.Annotations[v1alpha1.AnnotationStop]
	switch {
	case s.State == lifecycle.StateStopping:
	case b.DeletionTimestamp != nil:
		return lifecycle.Status{State: lifecycle.StateStopping, Reason: lifecycle.ReasonUserDelete,
			Message: "the BatchSandbox is being deleted", LastTransitionAt: b.DeletionTimestamp.UTC()}
	case stop != "":
		return lifecycle.Status{State: lifecycle.StateStopping, Reason: lifecycle.Reason(stop), Message: messageDeleted, LastTransitionAt: asked}
	case b.Spec.Pause && (s.State == lifecycle.StateRunning || asleep(s) || s.State == lifecycle.StateResuming && s.Reason == lifecycle.ReasonWoken):
		return lifecycle.Status{State: lifecycle.StatePausing, Reason: lifecycle.ReasonUserPause, Message: messagePaused, LastTransitionAt: asked}
	case !b.Spec.Pause && s.State == lifecycle.StatePaused && !asleep(s):
		return lifecycle.Status{State: lifecycle.StateResuming, Reason: lifecycle.ReasonUserResume, Message: messageResumed, LastTransitionAt: asked}
	}
	return s
}

// asleep reports whether a sandbox sleeps, or falls asleep: it is paused, and not by a client.
func asleep(s lifecycle.Status) bool {
	sandbox := lifecycle.Sandbox{Status: s}
	return sandbox.Sleeps()
}

// Passes reports whether requests to the sandbox are let through to its execd, which serves them or
// wakes the sandbox first.
func (e *Entry) Passes() bool {
	s := &e.Sandbox
	return s.Status.State == lifecycle.StateRunning || s.Sleeps() && s.Settings().AutoResume ||
		s.Status.State == lifecycle.StateResuming && s.Status.Reason == lifecycle.ReasonWoken
}

// usualMessage is what a state means where the controller has nothing to add, in the words of
// server/host.
func usualMessage(state lifecycle.State, reason lifecycle.Reason) string {
	switch state {
	case lifecycle.StatePending:
		return "accepted"
	case lifecycle.StateRunning:
		return "execd answers"
	case lifecycle.StatePausing:
		return messagePaused
	case lifecycle.StatePaused:
		return "frozen; its memory is retained"
	case lifecycle.StateResuming:
		return messageResumed
	case lifecycle.StateStopping, lifecycle.StateTerminated:
		if reason == lifecycle.ReasonUserDelete {
			return messageDeleted
		}
		return "stopped by the annotation " + v1alpha1.AnnotationStop
	}
	return ""
}

// expiry is when the sandbox ends. The resource has whole seconds; the annotation has the rest, as
// long as it is of the same second.
func expiry(b *v1alpha1.BatchSandbox) time.Time {
	if b.Spec.ExpireTime == nil {
		return time.Time{}
	}
	at := b.Spec.ExpireTime.UTC()
	if exact, err := time.Parse(time.RFC3339Nano, b.Annotations[AnnotationExpires]); err == nil && wholeSeconds(exact).Equal(at) {
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

// SetExpiry writes the expiry into a resource that has annotations.
func SetExpiry(b *v1alpha1.BatchSandbox, at time.Time) {
	b.Spec.ExpireTime = &metav1.Time{Time: wholeSeconds(at)}
	b.Annotations[AnnotationExpires] = at.UTC().Format(time.RFC3339Nano)
}

// Annotate writes a value as JSON into an annotation of a resource that has annotations.
func Annotate(b *v1alpha1.BatchSandbox, name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("annotation %s: %w", name, err)
	}
	b.Annotations[name] = string(text)
	return nil
}

// HasSidecar reports whether the sandbox has an egress sidecar.
func (e *Entry) HasSidecar() bool {
	if claim := e.Batch.Spec.Claim; claim != nil {
		return claim.Egress
	}
	return e.Batch.Spec.Template != nil && slices.ContainsFunc(e.Batch.Spec.Template.Spec.InitContainers,
		func(c corev1.Container) bool { return c.Name == ContainerSidecar })
}

// Address is the pod's IP address, empty while there is none.
func (e *Entry) Address() string {
	if len(e.Batch.Status.Addresses) == 0 {
		return ""
	}
	return e.Batch.Status.Addresses[0]
}

// trim drops what the read model does not need of a resource, so that what is kept of a sandbox is
// bounded: above all the pod, of which only the names of the init containers stay, and of a claim
// that of the container. A patch is made from the difference of two such resources, which leaves
// what was dropped as it is at the API server.
func trim(b *v1alpha1.BatchSandbox) {
	b.ManagedFields = nil
	if template := b.Spec.Template; template != nil {
		names := make([]corev1.Container, len(template.Spec.InitContainers))
		for i, container := range template.Spec.InitContainers {
			names[i].Name = container.Name
		}
		b.Spec.Template = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{InitContainers: names}}
	}
	if claim := b.Spec.Claim; claim != nil {
		b.Spec.Claim = &v1alpha1.Claim{Container: claim.Container, Egress: claim.Egress}
	}
	b.Spec.TaskTemplate, b.Spec.ShardPatches, b.Spec.ShardTaskPatches = nil, nil, nil
	b.Status.TaskStats, b.Status.Conditions = nil, nil
}
