package api

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
)

// noSleeper is the error where the backend lets no sandbox fall asleep.
func noSleeper() *lifecycle.Error {
	return lifecycle.Unsupportedf("lifecycle: this service lets no sandbox fall asleep, and none ends but by its timeout")
}

// UpdateLifecycle implements the generated interface.
func (h *handlers) UpdateLifecycle(
	ctx context.Context, request gen.UpdateLifecycleRequestObject,
) (gen.UpdateLifecycleResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	if h.sleeper == nil {
		return nil, noSleeper()
	}
	_, bounds, err := h.limitsOf(ctx)
	if err != nil {
		return nil, err
	}
	change := request.ApplicationMergePatchPlusJSONBody
	if change == nil {
		change = request.JSONBody
	}
	settings, err := h.sleeper.UpdateLifecycle(ctx, request.SandboxID, fromLifecycle(*change), bounds.MaxTimeout)
	if err != nil {
		return nil, err
	}
	return gen.UpdateLifecycle200JSONResponse{Body: toLifecycle(settings)}, nil
}

// GetHolds implements the generated interface.
func (h *handlers) GetHolds(ctx context.Context, request gen.GetHoldsRequestObject) (gen.GetHoldsResponseObject, error) {
	sandbox, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead)
	if err != nil {
		return nil, err
	}
	if h.sleeper == nil && sandbox.Status.State != lifecycle.StatePaused {
		return h.activity(ctx, request.SandboxID, "application/json") // the daemon answers in the same form
	}
	if h.sleeper == nil {
		return gen.GetHolds200JSONResponse{Body: gen.Holds{Holds: []gen.Hold{}}}, nil
	}
	holds, err := h.sleeper.Holds(ctx, request.SandboxID)
	if errors.Is(err, lifecycle.ErrNoHolds) {
		return nil, h.notAnswering(ctx, request.SandboxID, lifecycle.DaemonPort, err)
	}
	if err != nil {
		return nil, err
	}
	answer := gen.Holds{Holds: []gen.Hold{}, IdleMilliseconds: holds.Idle.Milliseconds()}
	if !holds.WakeAt.IsZero() {
		answer.WakeAt = &holds.WakeAt
	}
	for _, hold := range holds.Holds {
		answer.Holds = append(answer.Holds, gen.Hold{Kind: hold.Kind, ID: hold.ID, Since: hold.Since})
	}
	return gen.GetHolds200JSONResponse{Body: answer}, nil
}

// sleeps reports whether a request to the sandbox wakes it.
func (h *handlers) sleeps(sandbox lifecycle.Sandbox) bool { return h.sleeper != nil && sandbox.Wakes() }

// wake wakes the sandbox if it sleeps, and returns once it is Running.
func (h *handlers) wake(ctx context.Context, sandbox lifecycle.Sandbox) error {
	switch {
	case h.sleeps(sandbox):
		return h.sleeper.Wake(ctx, sandbox.ID)
	case sandbox.Status.State != lifecycle.StateRunning:
		return notRunning(sandbox.Status.State)
	}
	return nil
}

// fromLifecycle returns what is to be changed.
func fromLifecycle(l gen.SandboxLifecycle) (change lifecycle.LifecycleChange) {
	if l.OnIdle != nil {
		change.OnIdle = new(lifecycle.OnIdle(*l.OnIdle))
	}
	if l.IdleSeconds != nil { // the contract bounds it
		change.Idle = new(time.Duration(math.Round(*l.IdleSeconds*1000)) * time.Millisecond)
	}
	if l.HibernateSeconds != nil {
		change.Hibernate = new(time.Duration(math.Round(*l.HibernateSeconds*1000)) * time.Millisecond)
	}
	if l.OnTimeout != nil {
		change.OnTimeout = new(lifecycle.OnTimeout(*l.OnTimeout))
	}
	change.AutoResume = l.AutoResume
	return change
}

func toLifecycle(l lifecycle.Lifecycle) gen.SandboxLifecycle {
	l.Hibernate = cmp.Or(l.Hibernate, lifecycle.DefaultHibernate) // an earlier release has recorded none
	return gen.SandboxLifecycle{
		OnIdle: new(string(l.OnIdle)), IdleSeconds: new(l.Idle.Seconds()), HibernateSeconds: new(l.Hibernate.Seconds()), OnTimeout: new(string(l.OnTimeout)), AutoResume: &l.AutoResume,
	}
}
