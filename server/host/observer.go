package host

import (
	"time"

	"sandbox.internal/server/lifecycle"
)

// Observer is told what happens to sandboxes, for measurements. Its methods are called by many goroutines at once and must be quick.
type Observer interface {
	// StateChanged is called for a new sandbox, which is Pending, and whenever one has come into another state.
	StateChanged(to lifecycle.State, reason lifecycle.Reason)
	// StageDone tells how long a stage of provisioning has taken, from the end of the stage before.
	StageDone(stage Stage, took time.Duration)
	// Provisioned tells how long a sandbox has taken from its acceptance to Running, unless the service was restarted in between.
	Provisioned(took time.Duration)
	// Expired tells how much later than its time a sandbox was ended.
	Expired(late time.Duration)
}

// Stage is a part of the way from a request to a usable sandbox.
type Stage string

// The stages, in their order.
const (
	StageAccepted Stage = "accepted" // validated, and the record is durable
	StagePulled   Stage = "pulled"   // the engine has the image
	StageCreated  Stage = "created"  // a turn was had, and the container exists
	StageStarted  Stage = "started"  // the container runs
	StageReady    Stage = "ready"    // execd has answered
)

// Stages lists every stage, in their order.
func Stages() []Stage {
	return []Stage{StageAccepted, StagePulled, StageCreated, StageStarted, StageReady}
}

// laps measures stages that follow one another.
type laps struct {
	host *Host
	last time.Time
}

func (h *Host) laps() *laps { return &laps{h, h.Clock()} }

func (l *laps) done(stage Stage) {
	now := l.host.Clock()
	l.host.Observer.StageDone(stage, now.Sub(l.last))
	l.last = now
}

// Count returns how many sandboxes there are in each state that any is in.
func (h *Host) Count() map[lifecycle.State]int {
	count := make(map[lifecycle.State]int)
	h.registry.mu.RLock()
	defer h.registry.mu.RUnlock()
	for _, a := range h.registry.ordered {
		count[a.now().Sandbox.Status.State]++
	}
	return count
}

// blind observes nothing.
type blind struct{}

func (blind) StateChanged(lifecycle.State, lifecycle.Reason) {}
func (blind) StageDone(Stage, time.Duration)                 {}
func (blind) Provisioned(time.Duration)                      {}
func (blind) Expired(time.Duration)                          {}
