package lifecycle

import (
	"context"
	"time"
)

// EventType is what an event is about.
type EventType string

// The types of events. Readers must tolerate others.
const (
	EventState     EventType = "state"         // the sandbox changed its state, or came into being
	EventStage     EventType = "stage"         // provisioning reached a stage
	EventProgress  EventType = "progress"      // how provisioning goes on within its stage
	EventRenewed   EventType = "renewed"       // the expiry was moved
	EventMetadata  EventType = "metadata"      // the metadata was changed
	EventPolicy    EventType = "networkPolicy" // the network policy was changed
	EventLifecycle EventType = "lifecycle"     // when the sandbox falls asleep or ends by itself was changed
	EventSnapshot  EventType = "snapshot"      // a snapshot of the sandbox changed its state
	EventForgotten EventType = "forgotten"     // the record of the ended sandbox was removed; the sandbox's last event
)

// EventTypes lists every type.
func EventTypes() []EventType {
	return []EventType{EventState, EventStage, EventProgress, EventRenewed, EventMetadata, EventPolicy, EventLifecycle, EventSnapshot, EventForgotten}
}

// Event is something that happened to a sandbox. It is as durable as the change: a store writes
// both or neither.
type Event struct {
	// Sequence is the place in the one order of all events of a service, without gaps. The store
	// sets it, and the next two as well as this one are columns of their own there.
	Sequence  int64  `json:"-"`
	SandboxID string `json:"-"`
	Owner     string `json:"-"` // of the sandbox

	Type EventType
	Time time.Time // UTC

	// From and To are the states of an EventState; From is empty when the sandbox came into being.
	From State `json:",omitempty"`
	To   State `json:",omitempty"`
	// Reason and Message explain an EventState and an EventProgress.
	Reason  Reason `json:",omitempty"`
	Message string `json:",omitempty"`
	// Stage is what an EventStage reached, Took the time since the stage before, Elapsed the time
	// since the first one.
	Stage   Stage         `json:",omitempty"`
	Took    time.Duration `json:",omitempty"`
	Elapsed time.Duration `json:",omitempty"`
	// ExpiresAt is the expiry of an EventRenewed.
	ExpiresAt time.Time `json:",omitzero"`
	// Metadata has the keys that an EventMetadata set, with their new values, and Removed those
	// that it removed, sorted.
	Metadata map[string]string `json:",omitempty"`
	Removed  []string          `json:",omitempty"`
	// NetworkPolicy is the policy in force after an EventPolicy.
	NetworkPolicy *NetworkPolicy `json:",omitempty"`
	// Lifecycle holds after an EventLifecycle.
	Lifecycle *Lifecycle `json:",omitempty"`
	// SnapshotID is the snapshot of an EventSnapshot, SnapshotState the state that it came into;
	// Reason and Message explain a failure.
	SnapshotID    string        `json:",omitempty"`
	SnapshotState SnapshotState `json:",omitempty"`
}

// Stage is a milestone of provisioning.
type Stage string

// The stages of provisioning, in their order.
const (
	StageAccepted Stage = "accepted" // the sandbox is on durable record
	StagePulled   Stage = "pulled"   // the engine has the image
	StageCreated  Stage = "created"  // the container exists
	StageStarted  Stage = "started"  // the container runs
	StageReady    Stage = "ready"    // the daemon answers: the sandbox is Running
)

// Stages lists every stage, in their order.
func Stages() []Stage {
	return []Stage{StageAccepted, StagePulled, StageCreated, StageStarted, StageReady}
}

// StageTime is when a stage was reached.
type StageTime struct {
	Stage Stage
	At    time.Time // UTC
}

// Reached returns when the sandbox reached a stage, and whether it did.
func (s *Sandbox) Reached(stage Stage) (time.Time, bool) {
	for _, reached := range s.Stages {
		if reached.Stage == stage {
			return reached.At, true
		}
	}
	return time.Time{}, false
}

// Reach notes that the sandbox has reached a stage and returns its event. It returns false, and
// notes nothing, when the stage was reached before, and when the sandbox's beginning is not known
// because its record was rebuilt.
func (s *Sandbox) Reach(stage Stage, at time.Time) (Event, bool) {
	if _, before := s.Reached(stage); before || len(s.Stages) == 0 && stage != StageAccepted {
		return Event{}, false
	}
	event := Event{SandboxID: s.ID, Owner: s.Owner, Type: EventStage, Time: at.UTC(), Stage: stage}
	if n := len(s.Stages); n > 0 {
		event.Took = max(0, at.Sub(s.Stages[n-1].At))
		event.Elapsed = max(0, at.Sub(s.Stages[0].At))
	}
	// A new slice: another goroutine may read the old one.
	s.Stages = append(s.Stages[:len(s.Stages):len(s.Stages)], StageTime{stage, at.UTC()})
	return event, true
}

// EventQuery selects stored events.
type EventQuery struct {
	After     int64   // only events with a greater sequence
	SandboxID string  // empty means those of every sandbox
	Owner     *string // nil means those of every owner
	Limit     int     // at most so many, the oldest
	Bytes     int     // no more once they have so many bytes, as they are stored; 0 means no bound
}

// EventPage is what a query found, and the bounds of what there was at that moment.
type EventPage struct {
	Events []Event // in the order of their sequence
	// Newest is the greatest sequence ever given out. Oldest is the smallest one still kept,
	// Newest+1 when none is.
	Oldest, Newest int64
	// More says that the events end at a bound of the query: others may follow them.
	More bool
}

// EventSelection says which events a client wants to follow.
type EventSelection struct {
	SandboxID string  // empty means those of every sandbox
	Owner     *string // nil means those of every owner
	// After is the sequence of the last event that the client has; 0 asks for everything that is
	// kept. Without it a feed of one sandbox begins with the sandbox's first event that is kept,
	// and a feed of all sandboxes with what happens next.
	After *int64
}

// EventFeed hands out events in the order of their sequence, each one once, and follows what
// happens. It reads from the store at its user's pace: no writer waits for it.
type EventFeed interface {
	// Next returns what follows. The first call returns at once; a later one waits until there is
	// an event or ctx ends. It returns io.EOF after the last event of a sandbox.
	Next(ctx context.Context) (EventBatch, error)
	// Close releases the feed. It may be called once, and not during Next.
	Close()
}

// EventBatch is a part of a feed.
type EventBatch struct {
	Events []Event
	// Cursor is the sequence up to which the feed has delivered everything; following it goes on
	// after that.
	Cursor int64
	// Reset is true when events that the client asked for are forgotten, or never were here: it has
	// to read the sandboxes themselves. The feed goes on behind Cursor. Such a batch has no events.
	Reset bool
}
