package sandbox

import (
	"sandbox.internal/gen/execd"
	"sandbox.internal/gen/lifecycle"
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

// What the contracts define is used as it is.
type (
	// Info has a sandbox's details.
	Info = lifecycle.Sandbox
	// Version is a build of the service.
	Version = lifecycle.Version
	// Engine is what runs the sandboxes of a service on one machine.
	Engine = lifecycle.Engine
	// StoredImage is an image that the service's engine has.
	StoredImage = lifecycle.StoredImage
	// Event is something that happened to a sandbox; which fields it has depends on its Type.
	Event = lifecycle.SandboxEvent
	// Endpoint is how to reach a port: a URL, and the headers that every request to it needs.
	Endpoint = lifecycle.Endpoint
	// Volume is a mount with one source, Host or Pvc.
	Volume = lifecycle.Volume
	// HostSource and ClaimSource are the sources of volumes.
	HostSource = lifecycle.HostSource
	// ClaimSource is a volume that the runtime manages.
	ClaimSource = lifecycle.ClaimSource
	// NetworkPolicy is what a sandbox may reach. An empty one allows everything.
	NetworkPolicy = lifecycle.NetworkPolicy
	// NetworkAction is Allow or Deny.
	NetworkAction = lifecycle.NetworkAction
	// EgressRule is a rule of a network policy.
	EgressRule = lifecycle.EgressRule
	// NetworkDecision is what became of all attempts to reach something that are alike.
	NetworkDecision = lifecycle.NetworkDecision
	// Metrics is a snapshot of a sandbox's use of processors and memory (MiB).
	Metrics = execd.Metrics
	// CommandStatus is how a command is doing.
	CommandStatus = execd.CommandStatus
	// CodeContext is a kernel that keeps its variables.
	CodeContext = execd.CodeContext
	// FileInfo is what a file system has about a file. Modes are octal digits: 644.
	FileInfo = execd.FileInfo
	// FileEvent is something that happened to a watched file or directory.
	FileEvent = execd.FileEvent
	// Permission is who owns a file and who may use it; what is nil stays as it is.
	Permission = execd.Permission
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

// Ptr returns a pointer to a value, for optional fields.
func Ptr[T any](value T) *T { return &value }

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
