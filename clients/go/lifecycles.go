package sandbox

import (
	"time"

	"sandbox.internal/clients/go/lifecycle"
)

// The values of [LifecycleOptions]. OnIdlePause and OnTimeoutPause let a sandbox fall asleep. The
// next request to the sandbox, by whichever way it comes, wakes it. OnIdleHibernate is OnIdlePause,
// and a sandbox that has slept for the time Hibernate goes to the disk and takes no memory.
const (
	OnIdleNone      = "none"
	OnIdlePause     = "pause"
	OnIdleHibernate = "hibernate"
	OnIdleDelete    = "delete"
	OnTimeoutDelete = "delete"
	OnTimeoutPause  = "pause"
)

// LifecycleOptions say when a sandbox falls asleep or ends by itself. A field that is empty is left
// as it is, or at the service's default.
type LifecycleOptions struct {
	// OnIdle is what happens when nothing keeps the sandbox awake for the time Idle: one of
	// OnIdleNone, OnIdlePause, OnIdleHibernate and OnIdleDelete.
	OnIdle string
	// Idle is from 50 ms to 24 h; the service's default is a minute.
	Idle time.Duration
	// Hibernate is for how long the sandbox must have slept until it goes to the disk, with
	// OnIdleHibernate: from 1 s to 7 days; the service's default is 5 minutes.
	Hibernate time.Duration
	// OnTimeout is what happens when the time of the sandbox is up: OnTimeoutDelete or
	// OnTimeoutPause.
	OnTimeout string
	// AutoResume says whether requests wake the sandbox; nil, where nothing else was said, that they
	// do.
	AutoResume *bool
}

func (o LifecycleOptions) request() lifecycle.SandboxLifecycle {
	request := lifecycle.SandboxLifecycle{OnIdle: optional(o.OnIdle), OnTimeout: optional(o.OnTimeout), AutoResume: o.AutoResume}
	if o.Idle != 0 {
		request.IdleSeconds = new(o.Idle.Seconds())
	}
	if o.Hibernate != 0 {
		request.HibernateSeconds = new(o.Hibernate.Seconds())
	}
	return request
}

// optional returns the request; nil of nil.
func (o *LifecycleOptions) optional() *lifecycle.SandboxLifecycle {
	if o == nil {
		return nil
	}
	return new(o.request())
}
