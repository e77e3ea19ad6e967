package sandbox

import (
	"sandbox.internal/clients/go/execd"
	"sandbox.internal/clients/go/lifecycle"
)

// The states of a sandbox. Services may add more.
const (
	Pending    = "Pending"
	Running    = "Running"
	Pausing    = "Pausing"
	Paused     = "Paused"
	Resuming   = "Resuming"
	Stopping   = "Stopping"
	Terminated = "Terminated"
	Failed     = "Failed"
)

// The states of a [Snapshot]. Services may add more.
const (
	SnapshotCreating = "Creating"
	SnapshotReady    = "Ready"
	SnapshotFailed   = "Failed"
	SnapshotDeleting = "Deleting"
)

// The kinds of a [Snapshot]. Services may add more.
const (
	SnapshotFilesystem = "filesystem" // the files of a sandbox
	SnapshotMemory     = "memory"     // the files and the processes of a sandbox
)

// The types of an [Event]. Services may add more.
const (
	EventState         = "state"         // the sandbox went From one state To another
	EventStage         = "stage"         // provisioning reached a Stage
	EventProgress      = "progress"      // how provisioning goes on: Message
	EventRenewed       = "renewed"       // the expiry is now ExpiresAt
	EventMetadata      = "metadata"      // Metadata was set and MetadataRemoved removed
	EventNetworkPolicy = "networkPolicy" // the policy is now NetworkPolicy
	EventLifecycle     = "lifecycle"     // when the sandbox falls asleep or ends by itself is now Lifecycle
	EventSnapshot      = "snapshot"      // the snapshot SnapshotID is now in SnapshotState
	EventForgotten     = "forgotten"     // the record of the ended sandbox is gone; its last event
	EventReset         = "reset"         // events are missing: read the sandboxes again

	// eventPing is never yielded.
	eventPing = "ping"
)

// The types of a [FileEvent].
const (
	FileEventReady    = execd.FileEventTypeReady    // the watch has begun; the first event
	FileEventCreate   = execd.FileEventTypeCreate   // something appeared
	FileEventWrite    = execd.FileEventTypeWrite    // content was written
	FileEventRemove   = execd.FileEventTypeRemove   // something was removed
	FileEventRename   = execd.FileEventTypeRename   // something got another name
	FileEventChmod    = execd.FileEventTypeChmod    // the mode or the owner was changed
	FileEventOverflow = execd.FileEventTypeOverflow // events are missing: read the files again
	FileEventError    = execd.FileEventTypeError    // the watch cannot go on; the last event
)

// Types of the contracts are used as they are.
type (
	// Info has a sandbox's details.
	Info = lifecycle.Sandbox
	// SnapshotDiff has the files in which a snapshot differs, or the first of them.
	SnapshotDiff = lifecycle.SnapshotDiff
	// Lineage has snapshots and sandboxes that are related.
	Lineage = lifecycle.Lineage
	// LineageSandbox is a sandbox in a Lineage.
	LineageSandbox = lifecycle.LineageSandbox
	// FileChange is a file in which a snapshot differs.
	FileChange = lifecycle.FileChange
	// Version is a build of the service.
	Version = lifecycle.Version
	// CreateDefaults are what the service wants to be asked for where its users say nothing.
	CreateDefaults = lifecycle.CreateDefaults
	// Engine is what runs the sandboxes of a service on one machine.
	Engine = lifecycle.Engine
	// EngineGPUs are the GPUs of the machine that sandboxes can have.
	EngineGPUs = lifecycle.EngineGPUs
	// StoredImage is an image that the service's engine has.
	StoredImage = lifecycle.StoredImage
	// PrunedImages is what a removal of images has freed, and what it has left.
	PrunedImages = lifecycle.PrunedImages
	// Snapshot has the files of a sandbox as they were at a moment.
	Snapshot = lifecycle.Snapshot
	// Event is something that happened to a sandbox; which fields it has depends on its Type.
	Event = lifecycle.SandboxEvent
	// HostLoad is how busy the machine of the service is.
	HostLoad = lifecycle.HostLoad
	// Endpoint is how to reach a port: a URL, and the headers that every request to it needs.
	Endpoint = lifecycle.Endpoint
	// Volume is a mount with one source, Host or Pvc.
	Volume = lifecycle.Volume
	// HostSource is a volume that is a path of the host.
	HostSource = lifecycle.HostSource
	// ClaimSource is a volume that the runtime manages.
	ClaimSource = lifecycle.ClaimSource
	// NetworkPolicy is what a sandbox may reach. An empty one is refused with [ErrEmptyPolicy].
	NetworkPolicy = lifecycle.NetworkPolicy
	// NetworkAction is Allow or Deny.
	NetworkAction = lifecycle.NetworkAction
	// EgressRule is a rule of a network policy.
	EgressRule = lifecycle.EgressRule
	// NetworkDecision is what became of all attempts to reach something that are alike.
	NetworkDecision = lifecycle.NetworkDecision
	// Activity is one thing that a client has done in a sandbox, or does.
	Activity = lifecycle.ActivityEntry
	// Metrics is a snapshot of a sandbox's use of processors and memory (MiB).
	Metrics = execd.Metrics
	// Holds is what keeps a sandbox awake.
	Holds = lifecycle.Holds
	// Hold is one thing that keeps a sandbox awake.
	Hold = lifecycle.Hold
	// Lifecycle is when a sandbox falls asleep or ends by itself.
	Lifecycle = lifecycle.SandboxLifecycle
	// KeptAwake is what [Sandbox.KeepAwake] was granted.
	KeptAwake = execd.KeptAwake
	// CommandStatus is how a command is doing.
	CommandStatus = execd.CommandStatus
	// CodeContext is a kernel that keeps its variables.
	CodeContext = execd.CodeContext
	// FileInfo is what a file system has about a file. Modes are octal digits: 644.
	FileInfo = execd.FileInfo
	// FileEvent is something that happened to a watched file or directory.
	FileEvent = execd.FileEvent
	// Permission is who owns a file and who may use it; what is empty stays as it is.
	Permission = WriteOptions
	// Move is a new path for a file or directory.
	Move = execd.Move
	// Replacement is a text to look for and the one to put in its place.
	Replacement = execd.Replacement
	// TerminalInfo is how a terminal is doing.
	TerminalInfo = execd.Terminal
)

// The actions of a [NetworkPolicy] and its rules.
const (
	Allow = lifecycle.NetworkActionAllow
	Deny  = lifecycle.NetworkActionDeny
)

// optional is a pointer to a value, or nil for the zero value.
func optional[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// deref is the value behind a pointer, or the zero value.
func deref[T any](pointer *T) (value T) {
	if pointer != nil {
		value = *pointer
	}
	return value
}
