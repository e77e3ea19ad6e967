package lifecycle

import (
	"context"
	"errors"
	"time"
)

// Sleeper lets sandboxes fall asleep and wakes them. It is an ability that not every backend has.
// Errors that a client may see are of type *[Error].
type Sleeper interface {
	// UpdateLifecycle changes when the sandbox falls asleep or ends by itself, and returns what
	// holds then. MaxTimeout is the longest time to live that the caller's key allows, 0 for
	// [MaxTimeout]. It returns KindNotFound, KindInvalid and KindUnsupported for a change that
	// breaks a rule, and KindConflict for a sandbox that is ending or has ended.
	UpdateLifecycle(ctx context.Context, id string, change LifecycleChange, maxTimeout time.Duration) (Lifecycle, error)

	// Wake resumes a sandbox that sleeps ([Sandbox.Wakes]) and returns once it is Running, or has
	// been since the call; it returns at once where it is. In any other state it returns
	// KindConflict, and KindNotFound where there is none.
	Wake(ctx context.Context, id string) error

	// Holds returns what keeps a Running sandbox awake, and none for a Paused one. It returns
	// KindNotFound, KindConflict for any other state, and a wrapped [ErrNoHolds].
	Holds(ctx context.Context, id string) (Holds, error)
}

// ErrNoHolds is why a Sleeper does not know what keeps a sandbox awake: its daemon does not say.
var ErrNoHolds = errors.New("the daemon of the sandbox does not say what keeps it awake")

// OnIdle is what happens to a sandbox that nothing keeps awake.
type OnIdle string

// The values of OnIdle.
const (
	OnIdleNone   OnIdle = "none"   // it is left Running
	OnIdlePause  OnIdle = "pause"  // it falls asleep
	OnIdleDelete OnIdle = "delete" // it ends
	// OnIdleHibernate is OnIdlePause, and one that has slept for long is brought to the disk.
	OnIdleHibernate OnIdle = "hibernate"
)

// Sleeps reports whether a sandbox falls asleep.
func (o OnIdle) Sleeps() bool { return o == OnIdlePause || o == OnIdleHibernate }

// OnTimeout is what happens to a sandbox whose time is up.
type OnTimeout string

// The values of OnTimeout.
const (
	OnTimeoutDelete OnTimeout = "delete" // it ends
	OnTimeoutPause  OnTimeout = "pause"  // it falls asleep, and ends later
)

// Lifecycle is when a sandbox falls asleep or ends by itself.
type Lifecycle struct {
	OnIdle OnIdle
	// Idle is for how long nothing must have kept the sandbox awake.
	Idle time.Duration
	// Hibernate is for how long the sandbox must have slept until it is brought to the disk, with
	// OnIdleHibernate.
	Hibernate time.Duration
	OnTimeout OnTimeout
	// AutoResume says that requests wake the sandbox.
	AutoResume bool
}

// LifecycleChange is a change of a Lifecycle; nil leaves a field as it is.
type LifecycleChange struct {
	OnIdle     *OnIdle
	Idle       *time.Duration
	Hibernate  *time.Duration
	OnTimeout  *OnTimeout
	AutoResume *bool
}

// The limits of a Lifecycle.
const (
	DefaultIdle = time.Minute
	MinIdle     = 50 * time.Millisecond
	MaxIdle     = MaxTimeout

	DefaultHibernate = 5 * time.Minute
	MinHibernate     = time.Second
	MaxHibernate     = 7 * 24 * time.Hour
)

// DefaultLifecycle returns what holds for a sandbox where nothing was asked for.
func DefaultLifecycle() Lifecycle {
	return Lifecycle{OnIdle: OnIdleNone, Idle: DefaultIdle, Hibernate: DefaultHibernate, OnTimeout: OnTimeoutDelete, AutoResume: true}
}

// With returns the Lifecycle with a change.
func (l Lifecycle) With(change LifecycleChange) Lifecycle {
	if change.OnIdle != nil {
		l.OnIdle = *change.OnIdle
	}
	if change.Idle != nil {
		l.Idle = *change.Idle
	}
	if change.Hibernate != nil {
		l.Hibernate = *change.Hibernate
	}
	if change.OnTimeout != nil {
		l.OnTimeout = *change.OnTimeout
	}
	if change.AutoResume != nil {
		l.AutoResume = *change.AutoResume
	}
	return l
}

// Clone returns a copy; nil of nil.
func (l *Lifecycle) Clone() *Lifecycle {
	if l == nil {
		return nil
	}
	return new(*l)
}

// Validate returns an Error of KindInvalid that names the first field that breaks a rule, and the
// rule. The Lifecycle may be nil.
func (l *Lifecycle) Validate() error {
	switch {
	case l == nil:
		return nil
	case l.OnIdle != OnIdleNone && !l.OnIdle.Sleeps() && l.OnIdle != OnIdleDelete:
		return Invalidf("lifecycle.onIdle: must be none, pause, hibernate or delete, not %.40q", l.OnIdle)
	case l.OnTimeout != OnTimeoutDelete && l.OnTimeout != OnTimeoutPause:
		return Invalidf("lifecycle.onTimeout: must be delete or pause, not %.40q", l.OnTimeout)
	case l.Idle < MinIdle || l.Idle > MaxIdle:
		return Invalidf("lifecycle.idleSeconds: must be within %g and %g, got %g", MinIdle.Seconds(), MaxIdle.Seconds(), l.Idle.Seconds())
	case l.Hibernate < MinHibernate || l.Hibernate > MaxHibernate:
		return Invalidf("lifecycle.hibernateSeconds: must be within %g and %g, got %g", MinHibernate.Seconds(), MaxHibernate.Seconds(), l.Hibernate.Seconds())
	}
	return nil
}

// Settings returns what holds for the sandbox.
func (s *Sandbox) Settings() Lifecycle {
	if s.Lifecycle == nil {
		return DefaultLifecycle()
	}
	settings := *s.Lifecycle
	if settings.Hibernate == 0 { // written by a version without it
		settings.Hibernate = DefaultHibernate
	}
	return settings
}

// Sleeps reports whether the sandbox is asleep or falling asleep by itself. A sandbox that a
// client has paused does not sleep.
func (s *Sandbox) Sleeps() bool {
	paused := s.Status.State == StatePaused || s.Status.State == StatePausing
	return paused && (s.Status.Reason.IsIdle() || s.Status.Reason == ReasonTimeout)
}

// IsIdle reports whether a sandbox that is Paused for the reason has fallen asleep because it was
// idle, wherever it is by now.
func (r Reason) IsIdle() bool { return r == ReasonIdle || r.IsOnDisk() }

// IsOnDisk reports whether a sandbox that sleeps for the reason is on the disk, and has no address.
func (r Reason) IsOnDisk() bool { return r == ReasonHibernated || r == ReasonHibernatedFiles }

// Hibernation is how far a sandbox that sleeps was brought to the disk; empty when it was not.
type Hibernation string

// The values of Hibernation.
const (
	HibernationBegun     Hibernation = "begun"     // the processes may be in memory, on the disk, or gone
	HibernationProcesses Hibernation = "processes" // the processes are on the disk
	HibernationFiles     Hibernation = "files"     // the processes have ended
)

// Wakes reports whether a request to the sandbox wakes it, or waits for it because a request or a
// client has it run again.
func (s *Sandbox) Wakes() bool {
	runs := s.Status.State == StateResuming && (s.Status.Reason == ReasonWoken || s.Status.Reason == ReasonUserResume)
	return s.Sleeps() && s.Settings().AutoResume || runs
}

// IdleEvent is what the daemon of a sandbox reports of its rest.
type IdleEvent struct {
	// Idle is true when nothing has kept the sandbox awake for as long as was asked for, false when
	// something does again.
	Idle bool
	// Kind is what keeps it awake, when it is not idle.
	Kind string
	// WakeAt is when the sandbox wants to be woken if it falls asleep; zero when it has no such
	// wish.
	WakeAt time.Time
}
