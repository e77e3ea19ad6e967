package host

import (
	"time"

	"sandbox.internal/server/lifecycle"
)

// Observer measures what happens to sandboxes. Many goroutines call the methods concurrently, which
// must be quick.
type Observer interface {
	// StateChanged is called for a new sandbox, which is Pending, and at every change of a state.
	StateChanged(to lifecycle.State, reason lifecycle.Reason)
	// StageDone is how long a stage of provisioning has taken, from the end of the stage before;
	// accepted, from the call of Create until the record is durable. It is not called for a stage
	// during which the service was restarted.
	StageDone(stage lifecycle.Stage, took time.Duration)
	// Provisioned is how long a sandbox took from its acceptance to Running, unless the service was
	// restarted in between.
	Provisioned(took time.Duration)
	// Expired is by how much the end of a sandbox was later than its expiry.
	Expired(late time.Duration)
}

// noObserver measures nothing.
type noObserver struct{}

func (noObserver) StateChanged(lifecycle.State, lifecycle.Reason) {}
func (noObserver) StageDone(lifecycle.Stage, time.Duration)       {}
func (noObserver) Provisioned(time.Duration)                      {}
func (noObserver) Expired(time.Duration)                          {}
