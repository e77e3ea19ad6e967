// Package lifecycle is the vocabulary and the rules of sandboxes: what one is, which states it
// passes through, what may be asked of it.
//
// It does no I/O, and is independent of HTTP, container engines and databases. Rules are data or
// pure functions that are given the time.
package lifecycle

import (
	"maps"
	"slices"
	"time"
)

// LabelPrefix starts every key that we reserve: labels on containers, metadata keys.
const LabelPrefix = "sandbox.internal/"

// Sandbox is one sandbox as a client may see it (lifecycle document, "Sandbox"), and who owns it.
type Sandbox struct {
	ID         string
	Image      string // image reference; credentials are never part of it
	Status     Status
	Metadata   map[string]string
	Entrypoint []string
	ExpiresAt  time.Time // UTC
	CreatedAt  time.Time // UTC
	Owner      string    // name of the API key that created it; empty when no key was needed
	Extensions []byte    `json:",omitempty"` // as in the Spec, byte for byte
	// RuntimeClass is the name of the class that it runs in; empty means the backend's default.
	RuntimeClass string `json:",omitempty"`
	// Limits are its resource limits in numbers.
	Limits Limits `json:",omitzero"`
	// SnapshotID is the snapshot that its files come from: that of its creation, or of its last
	// rollback. Empty when there is none.
	SnapshotID string `json:",omitempty"`
	// Lifecycle says when it falls asleep or ends by itself; nil when nothing was asked for.
	Lifecycle *Lifecycle `json:",omitempty"`
	// Stages are the stages of provisioning that the sandbox has reached, in order. Empty when they
	// are not known.
	Stages []StageTime `json:",omitempty"`
}

// Status is a state and why the sandbox is in it.
type Status struct {
	State            State
	Reason           Reason
	Message          string // for people
	LastTransitionAt time.Time
	// ExitCode is the exit code of the main program, 128 and the number of the signal that ended
	// it, of a sandbox that is over because that program has ended ([ReasonEntrypointExited]). It
	// is nil for every other sandbox, and where it is not known.
	ExitCode *int `json:",omitempty"`
}

// Spec is what a client asks for (lifecycle document, "Create request body"). Validate checks it.
type Spec struct {
	Image string
	// SnapshotID is the snapshot that the sandbox begins with, in place of Image; empty for none.
	// The backend completes Image, Entrypoint and Resources from the snapshot.
	SnapshotID string     `json:",omitempty"`
	Auth       *ImageAuth `json:"-"` // never stored
	Timeout    time.Duration
	Resources  ResourceLimits
	// Requests is what a cluster reserves of the resources; a key that is absent is reserved as
	// Resources limits it.
	Requests ResourceLimits `json:",omitempty"`
	// Entrypoint is the main program and its arguments; nil when ImageEntrypoint is true.
	Entrypoint []string
	// ImageEntrypoint says that the image's own entrypoint and command run.
	ImageEntrypoint bool `json:",omitempty"`

	Env           map[string]string
	Metadata      map[string]string
	NetworkPolicy *NetworkPolicy
	Volumes       []Volume
	// RuntimeClass is the name of one of the service's [RuntimeClasses]; empty means the backend's
	// default.
	RuntimeClass string `json:",omitempty"`
	// Lifecycle says when the sandbox falls asleep or ends by itself; nil leaves it alone until its
	// time is up.
	Lifecycle *Lifecycle `json:",omitempty"`
	// Extensions is a JSON object for other software, passed through byte for byte; nil when there
	// is none. Not json.RawMessage: as a part of other JSON its bytes would be rewritten.
	Extensions []byte `json:",omitempty"`
}

// ImageAuth is a user's name and password at an image registry. It is neither stored nor logged.
type ImageAuth struct {
	Username string
	Password string
}

// Record is a sandbox with everything the service needs after a crash.
type Record struct {
	Sandbox Sandbox
	// Spec is what was asked for, without what the Sandbox has: image, metadata, entrypoint,
	// extensions and lifecycle. It is empty once Removed.
	Spec Spec
	// ByAdmin reports that an administrator's key created it.
	ByAdmin bool `json:",omitempty"`
	// NeedsAuth is true when the image was asked for with credentials, which are not stored.
	NeedsAuth bool
	// Token is the secret that the sandbox's execd demands.
	Token string
	// Port is the host's port that execd is published on, 0 before it is known.
	Port int
	// HostNetwork is true when the sandbox shares the host's network: Port is then execd's own, on
	// the loopback interface.
	HostNetwork bool
	// Runtime is what the engine runs it with, the [RuntimeClass].Handler when it was accepted;
	// empty means the engine's default.
	Runtime string `json:",omitempty"`
	// Sidecar is the egress sidecar beside the sandbox; nil when there is none.
	Sidecar *Sidecar `json:",omitempty"`
	// SpareNetwork is true when the network was made before the sandbox: its owner is then at the
	// engine from the beginning, and is a container of its own, without a sidecar, too.
	SpareNetwork bool `json:",omitempty"`
	// Box is the identity of what the sandbox is made of at the engine.
	Box string `json:",omitempty"`
	// StopTime is how long the box may take to end when it is stopped, before it is killed. 0 is
	// for one that was made when none was recorded.
	StopTime time.Duration `json:",omitempty"`
	// EngineImage is the engine's id of the image, of a sandbox that begins with a snapshot or that
	// one was taken of; empty where it is not known.
	EngineImage string `json:",omitempty"`
	// Rollback is the snapshot whose files the box is being given, while it is Resuming for that;
	// empty otherwise.
	Rollback string `json:",omitempty"`
	// LastSnapshot is the last snapshot that was taken of the sandbox since its files came from
	// another one; empty when there was none.
	LastSnapshot string `json:",omitempty"`
	// ParentSandbox is the sandbox that the snapshot was taken of which this one was created with;
	// empty without a snapshot. It may be gone, and so may the snapshot.
	ParentSandbox string `json:",omitempty"`
	// Stopped is true while the processes of the sandbox are gone and its files are kept: it is
	// Paused or Resuming then, and resuming starts its box again.
	Stopped bool `json:",omitempty"`
	// Hibernation is how far the sandbox was brought to the disk since it ran.
	Hibernation Hibernation `json:",omitempty"`
	// Asleep: the sandbox slept when the rollback to Rollback was asked for.
	Asleep bool `json:",omitempty"`
	// MaxTimeout is the longest time to live that the owner's key allowed; 0 is [MaxTimeout].
	MaxTimeout time.Duration `json:",omitempty"`
	// TimedOut is true once the sandbox was paused because its time was up, until it is resumed: its
	// expiry is the end that it has nevertheless.
	TimedOut bool `json:",omitempty"`
	// WakeAt is when the sandbox, which sleeps, is to be woken; zero when it has no such time.
	WakeAt time.Time `json:",omitzero"`
	// Removed is true when nothing of the sandbox is left at the engine.
	Removed bool
	// RetainUntil is when the record of an ended sandbox is forgotten; zero while it lives.
	RetainUntil time.Time
}

// Clone returns a copy that shares nothing mutable with the record.
func (r Record) Clone() Record {
	r.Sandbox = r.Sandbox.Clone()
	r.Spec = r.Spec.Clone()
	if r.Sidecar != nil {
		sidecar := *r.Sidecar
		r.Sidecar = &sidecar
	}
	return r
}

// Clone returns a copy that shares nothing mutable with the spec.
func (s Spec) Clone() Spec {
	if s.Auth != nil {
		auth := *s.Auth
		s.Auth = &auth
	}
	s.NetworkPolicy = s.NetworkPolicy.Clone()
	s.Resources = maps.Clone(s.Resources)
	s.Requests = maps.Clone(s.Requests)
	s.Entrypoint = slices.Clone(s.Entrypoint)
	s.Env = maps.Clone(s.Env)
	s.Metadata = maps.Clone(s.Metadata)
	s.Volumes = slices.Clone(s.Volumes)
	s.Lifecycle = s.Lifecycle.Clone()
	s.Extensions = slices.Clone(s.Extensions)
	return s
}

// Clone returns a copy that shares nothing mutable with the sandbox.
func (s Sandbox) Clone() Sandbox {
	s.Metadata = maps.Clone(s.Metadata)
	s.Entrypoint = slices.Clone(s.Entrypoint)
	s.Extensions = slices.Clone(s.Extensions)
	s.Lifecycle = s.Lifecycle.Clone()
	s.Stages = slices.Clone(s.Stages)
	if s.Status.ExitCode != nil {
		s.Status.ExitCode = new(*s.Status.ExitCode)
	}
	return s
}
