package lifecycle

import (
	"errors"
	"fmt"
)

// What follows is the vocabulary between the rules of sandboxes (server/host) and what a sandbox is
// made of on one machine, its box: a container at an engine, with or without an egress sidecar
// (server/box).

// Errors of a box that a caller can act on. They are wrapped: the message is the engine's.
var (
	// ErrBoxUnavailable: the engine does not answer. The same call may work later.
	ErrBoxUnavailable = errors.New("the engine does not answer")
	// ErrNoBox: the sandbox has no box; if it had one, another process has removed it.
	ErrNoBox = errors.New("there is no such box")
	// ErrBoxNotAlive: the box exists, and is in no condition for the call.
	ErrBoxNotAlive = errors.New("the box is not alive")
)

// BoxFailure is why a box cannot be used, in the terms of a sandbox's status. It is final: the same
// call would fail again.
type BoxFailure struct {
	Reason  Reason
	Message string
	// Exit is how the entrypoint ended; nil when something else failed.
	Exit *BoxExit
}

func (f *BoxFailure) Error() string { return f.Message }

// BoxFailuref returns a failure with a reason.
func BoxFailuref(reason Reason, format string, values ...any) *BoxFailure {
	return &BoxFailure{Reason: reason, Message: fmt.Sprintf(format, values...)}
}

// BoxStatus is what a box does.
type BoxStatus string

// The states of a box.
const (
	BoxRunning BoxStatus = "running"
	BoxFrozen  BoxStatus = "frozen"
	BoxEnded   BoxStatus = "ended" // see BoxExit
	// BoxStopped is a box whose processes are gone and whose files are kept: it can be started
	// again.
	BoxStopped BoxStatus = "stopped"
)

// BoxCondition is what is found of a sandbox's box.
type BoxCondition struct {
	Status BoxStatus
	Place  Place
	// Exit is set when Status is BoxEnded.
	Exit *BoxExit
}

// Place is where the processes in a box are reached, as ports of the host that [Record.Port] and
// [Sidecar.Port] name; 0 while unknown.
type Place struct {
	Port        int // of execd
	SidecarPort int // of the egress sidecar's API; 0 without a sidecar
	// Entrypoint is the image's entrypoint and command, of a sandbox that runs them
	// ([Spec.ImageEntrypoint]); nil when it is not known.
	Entrypoint []string
	// Restored is whether the processes there are those of a snapshot, for a box that was started
	// again. RestoreError says why they are not, although the box was rolled back to them.
	Restored     bool
	RestoreError string
}

// BoxExit is how the entrypoint of a sandbox ended.
type BoxExit struct {
	Code      int
	OOMKilled bool // the kernel killed a process of the sandbox for the memory it used
	// StartError is the engine's message when the entrypoint was never started.
	StartError string
	// NeverStarted is true when the entrypoint was never started.
	NeverStarted bool
	// Log is the end of what the entrypoint printed, at most 20 lines and 64 KiB.
	Log string
}

// BoxListing is a box that the engine has, whether a sandbox is recorded for it or not.
type BoxListing struct {
	// ID is the identity of the box ([Record.Box]); empty for what is no sandbox's.
	ID      string
	Status  BoxStatus // BoxEnded also for one that has not been started; empty when only the owner of its network is left
	Network BoxStatus // of the container that owns its network, such as the egress sidecar; empty where that is its own
	// Rebuild returns the record from what the box carries, for a box that is alive; nil otherwise.
	// The record's expiry is the one at creation.
	Rebuild func() *Record
	// Parts are the engine's names of what belongs to it.
	Parts []string
}

// BoxEvent is something that happened to a box. It is a hint to inspect it.
type BoxEvent string

// The types of events of a box.
const (
	BoxEventStarted BoxEvent = "started"
	BoxEventFrozen  BoxEvent = "frozen"
	BoxEventThawed  BoxEvent = "thawed"
	BoxEventEnded   BoxEvent = "ended" // or removed, or its sidecar ended
)

// Launch accompanies the launch of a box.
type Launch struct {
	// Fresh is true when no earlier launch can have left anything at the engine, which saves
	// looking for it.
	Fresh bool
	// Auth is for the registry of the image; nil when there are no credentials, or they were
	// forgotten in a restart.
	Auth *ImageAuth
	// Ready is asked when execd has answered at the place; the launch repeats it until it returns
	// nil.
	Ready func(Place) error

	// Reached is called at the end of each stage, Doing and Waiting for each step within one: Doing
	// for what takes moments, Waiting for what may take minutes.
	Reached func(Stage)
	Doing   func(message string)
	Waiting func(reason Reason, message string)
}
