package host

import (
	"context"
	"fmt"
	"time"

	"sandbox.internal/server/lifecycle"
)

var _ lifecycle.Sleeper = (*Host)(nil)

// UpdateLifecycle implements lifecycle.Sleeper.
func (h *Host) UpdateLifecycle(
	ctx context.Context, id string, change lifecycle.LifecycleChange, maxTimeout time.Duration,
) (settings lifecycle.Lifecycle, err error) {
	a, err := h.registry.get(id)
	if err != nil {
		return settings, err
	}
	err = a.do(ctx, func() error {
		if state := a.state(); state.Final() || state == lifecycle.StateStopping {
			return lifecycle.Conflictf("cannot change the lifecycle: the sandbox is %s", state)
		}
		settings = a.record.Sandbox.Settings().With(change)
		if err := settings.Validate(); err != nil {
			return err
		}
		if err := h.checkLifecycle(&settings); err != nil {
			return err
		}
		record := a.record
		record.Sandbox.Lifecycle, record.MaxTimeout = new(settings), maxTimeout
		if settings == a.record.Sandbox.Settings() {
			return a.commit(synced, record)
		}
		event := a.event(lifecycle.EventLifecycle)
		event.Lifecycle = new(settings)
		return a.commit(synced, record, event)
	})
	return settings, err
}

// Wake implements lifecycle.Sleeper. It returns once the processes run, which may not be recorded
// by then.
func (h *Host) Wake(ctx context.Context, id string) error {
	a, err := h.registry.get(id)
	if err != nil {
		return err
	}
	var runs, thaws, failures int64
	// The sandbox may sleep again by the time that this goroutine looks.
	woken := func() bool { return a.runs.Load() != runs || a.thaws.Load() != thaws }
	failed := func() bool { return a.failedWakes.Load() != failures }
	err = a.do(ctx, func() error {
		runs, thaws, failures = a.runs.Load(), a.thaws.Load(), a.failedWakes.Load()
		sandbox := &a.record.Sandbox
		switch {
		case sandbox.Status.State == lifecycle.StateRunning:
			runs--
		case !sandbox.Wakes():
			return sandbox.Status.State.Conflict("wake the sandbox", lifecycle.StateRunning)
		case sandbox.Sleeps():
			a.sleep.woken = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	record := a.await(ctx, wakeTimeout, func(r *lifecycle.Record) bool { return woken() || failed() || !r.Sandbox.Wakes() })
	switch {
	case woken():
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case failed():
		return &lifecycle.Error{
			Kind: lifecycle.KindUnavailable, RetryAfter: 1,
			Message: fmt.Sprintf("sandbox %s sleeps and cannot be woken: %s", id, a.snapshot().Sandbox.Status.Message),
		}
	case record.Sandbox.Wakes():
		return &lifecycle.Error{
			Kind: lifecycle.KindUnavailable, RetryAfter: 1,
			Message: fmt.Sprintf("sandbox %s sleeps and is not woken within %v", id, wakeTimeout),
		}
	}
	return record.Sandbox.Status.State.Conflict("wake the sandbox", lifecycle.StateRunning)
}

// pauseAsleep takes a sandbox that sleeps for one that a client has paused, which nothing wakes but
// a resume. It returns false for one that does not sleep.
func (h *Host) pauseAsleep(ctx context.Context, id string) (kept bool, err error) {
	a, err := h.registry.get(id)
	if err != nil {
		return false, err
	}
	woken := false
	defer func() {
		if woken {
			a.await(ctx, actTimeout, func(r *lifecycle.Record) bool { return !r.Sandbox.Wakes() })
		}
	}()
	err = a.do(ctx, func() error {
		woken = a.record.Sandbox.Sleeps() && a.sleep.woken
		if kept = a.record.Sandbox.Sleeps() && !woken; !kept {
			return nil
		}
		record := a.record
		record.Sandbox.Status.Reason, record.Sandbox.Status.Message = lifecycle.ReasonUserPause, "paused by a client"
		event := a.event(lifecycle.EventProgress)
		event.Reason, event.Message = record.Sandbox.Status.Reason, record.Sandbox.Status.Message
		return a.commit(synced, record, event)
	})
	return kept, err
}

// resumeAsleep has a sandbox woken that is falling asleep, and waits for one that is being woken:
// whoever resumes it need not know which. It returns false for any other.
func (h *Host) resumeAsleep(ctx context.Context, id string) (woken bool, err error) {
	a, err := h.registry.get(id)
	if err != nil {
		return false, err
	}
	var before int64
	err = a.do(ctx, func() error {
		before = a.runs.Load()
		sandbox := &a.record.Sandbox
		switch falling := sandbox.Sleeps() && sandbox.Status.State == lifecycle.StatePausing; {
		case falling:
			a.sleep.woken, woken = true, true
		case sandbox.Status.State == lifecycle.StateResuming && sandbox.Status.Reason == lifecycle.ReasonWoken:
			woken = true
		}
		return nil
	})
	if woken {
		a.await(ctx, actTimeout, func(*lifecycle.Record) bool { return a.runs.Load() != before })
	}
	return woken, err
}

// Holds implements lifecycle.Sleeper.
func (h *Host) Holds(ctx context.Context, id string) (lifecycle.Holds, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return lifecycle.Holds{}, err
	}
	record := a.snapshot()
	switch state := record.Sandbox.Status.State; state {
	case lifecycle.StatePaused, lifecycle.StatePausing, lifecycle.StateResuming:
		return lifecycle.Holds{WakeAt: record.WakeAt}, nil
	case lifecycle.StateRunning:
	default:
		return lifecycle.Holds{}, state.Conflict("list what keeps the sandbox awake", lifecycle.StateRunning, lifecycle.StatePaused)
	}
	holds, err := h.options.Boxes.Holds(ctx, *record)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", lifecycle.ErrNoHolds, err)
	}
	return holds, err
}
