package engine

import (
	"errors"
	"fmt"
)

// Sentinels that an Engine's errors wrap.
var (
	// ErrUnavailable: the engine does not answer; the same call may work later.
	ErrUnavailable = errors.New("container engine unavailable")
	// ErrNotFound: there is no such container, volume or image.
	ErrNotFound = errors.New("no such container")
	// ErrNotRunning: the container is not in a condition for this call.
	ErrNotRunning = errors.New("container is not running")
	// ErrExists: the container's name is taken.
	ErrExists = errors.New("container already exists")
	// ErrImage: the image cannot be had; the message is the registry's own.
	ErrImage = errors.New("image unavailable")
	// ErrInvalid: the engine refuses what the spec asks for.
	ErrInvalid = errors.New("container refused")
	// ErrNetwork: the container's network or a published port could not be set up.
	ErrNetwork = errors.New("network setup failed")
)

// TargetError is why something cannot be mounted at a path of a container: its image leads the path
// elsewhere. It wraps [ErrInvalid].
type TargetError struct {
	Target string // as the spec names it
	Rule   string // violated rule, a part of a sentence
}

func (e *TargetError) Error() string {
	return fmt.Sprintf("%v: mount %q %s", ErrInvalid, e.Target, e.Rule)
}

// Unwrap implements errors.Is.
func (e *TargetError) Unwrap() error { return ErrInvalid }
