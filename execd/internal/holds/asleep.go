package holds

import (
	"context"
	"errors"
	"time"
)

// shortestSleep is how long a sandbox must have until the time that it is to be woken at: else a
// program could have it frozen and thawed many times per second.
const shortestSleep = time.Second

// The errors of falling asleep.
var (
	// ErrBusy is the error of a sandbox that is to fall asleep and is not idle, or was woken before
	// it slept.
	ErrBusy = errors.New("the sandbox is not idle: GET /holds lists the requests and programs that keep it awake")
	// ErrPaused is the error of a sandbox that is to fall asleep and is frozen already.
	ErrPaused = errors.New("the sandbox is frozen, and does not sleep: thaw it first, with POST /thaw or by resuming it")
)

// errWoken ends the freeze of a sandbox that is woken before it sleeps.
var errWoken = errors.New("the sandbox is being woken")

// Processes stops and continues the processes of the sandbox.
type Processes interface {
	// Sleep stops them for a sandbox that is to be woken, Freeze for one that is not. With an error
	// of a sandbox that was not frozen they run.
	Sleep(ctx context.Context) error
	Freeze(ctx context.Context) error
	// Thaw continues them.
	Thaw() error
	// Frozen reports whether they are stopped.
	Frozen() bool
}

// sleep is one sleep of the sandbox.
type sleep struct {
	since  time.Time
	cancel context.CancelCauseFunc // ends the stopping of the processes
	over   chan struct{}           // closed when the sandbox does not sleep any more

	// These are under registry.mu.
	stopped bool        // the processes are
	wakes   bool        // requests end it
	begun   bool        // its end has begun
	timer   *time.Timer // ends it at a time; nil for none
}

// Condition is when and how a sandbox falls asleep.
type Condition struct {
	// Idle is for how long there must have been no hold; negative means that holds do not count.
	Idle time.Duration
	// Wakes says that the next hold, or the time that a program has asked for, wakes the sandbox.
	Wakes bool
}

// Sleep stops the processes of the sandbox. A hold either begins before, so that the sandbox does
// not fall asleep, or finds it asleep and wakes it: both are decided under one lock. A sandbox that
// sleeps takes the new condition. Sleep returns [ErrBusy], [ErrPaused], and errors of the
// processes, which run then.
func (r *Registry) Sleep(ctx context.Context, condition Condition) error {
	r.turn <- struct{}{}
	defer r.yield()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := r.fallAsleep(condition, cancel)
	if s == nil {
		return err
	}
	err = r.processes.Sleep(ctx)
	woken := err != nil && context.Cause(ctx) == errWoken && !r.processes.Frozen()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case woken:
		r.endSleep(s)
		return ErrBusy
	case err != nil:
		r.endSleep(s)
		return err
	case s.begun:
		return ErrBusy // it is thawed in its turn
	}
	s.stopped = true
	r.setTimer(s, s.since) // also for a time that has come while the processes were being stopped
	r.notifySleep()
	return nil
}

// yield lets the next operation stop or continue the processes.
func (r *Registry) yield() { <-r.turn }

// fallAsleep marks the sandbox as asleep, and returns nil where it is not to be frozen, because the
// error says why or because it sleeps already.
func (r *Registry) fallAsleep(condition Condition, cancel context.CancelCauseFunc) (*sleep, error) {
	frozen := r.processes.Frozen()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if s := r.asleep; s != nil {
		if s.begun {
			return nil, ErrBusy
		}
		s.wakes = condition.Wakes
		r.setTimer(s, now)
		if r.count > 0 && condition.Idle >= 0 {
			r.beginWake()
		}
		r.notifySleep()
		return nil, nil
	}
	if frozen {
		return nil, ErrPaused
	}
	if condition.Idle >= 0 {
		wakeAt := r.nextWake(now)
		soon := condition.Wakes && !wakeAt.IsZero() && wakeAt.Before(now.Add(shortestSleep))
		if r.count > 0 || !r.loadedSince().IsZero() || now.Sub(r.idle) < condition.Idle || soon {
			return nil, ErrBusy
		}
	}
	r.asleep = &sleep{since: now, cancel: cancel, over: make(chan struct{}), wakes: condition.Wakes}
	return r.asleep, nil
}

// setTimer has the sandbox woken at the first time that a program has asked for after another. The
// caller holds mu.
func (r *Registry) setTimer(s *sleep, after time.Time) {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if at := r.nextWake(after); s.wakes && !at.IsZero() {
		s.timer = time.AfterFunc(time.Until(at), func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.asleep == s {
				r.beginWake()
			}
		})
	}
}

// beginWake begins to wake a sandbox that sleeps, and returns the sleep that ends; nil where there
// is none, or where requests do not end it. The caller holds mu.
func (r *Registry) beginWake() *sleep {
	s := r.asleep
	if s == nil || !s.wakes {
		return nil
	}
	if !s.begun {
		s.begun = true
		s.cancel(errWoken)
		go r.thawIfAsleep(s)
	}
	return s
}

// thawIfAsleep continues the processes, unless the sandbox was paused or thawed meanwhile. Where
// they cannot be continued, those who wait go on, and the next hold tries again.
func (r *Registry) thawIfAsleep(s *sleep) {
	r.turn <- struct{}{}
	defer r.yield()
	r.mu.Lock()
	current := r.asleep == s
	r.mu.Unlock()
	if !current {
		return
	}
	failed := r.processes.Thaw() != nil && r.processes.Frozen()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSleep(s)
	if failed {
		r.asleep = &sleep{since: s.since, cancel: func(error) {}, over: make(chan struct{}), stopped: true, wakes: s.wakes}
	}
}

// endSleep ends a sleep. The sandbox counts as idle from then on at the earliest. The caller holds
// mu.
func (r *Registry) endSleep(s *sleep) {
	if r.asleep != s || s == nil {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.begun, r.asleep = true, nil
	close(s.over)
	r.touch()
	r.notifySleep()
}

// touch has the quiet time begin now. The caller holds mu.
func (r *Registry) touch() {
	if r.count == 0 {
		r.idle = time.Now()
	}
	for w := range r.watches {
		if w.sleeps {
			w.idle = false // it is reported as idle once more
			w.notify()
		}
	}
}

// notifySleep has watches look whether the sandbox sleeps. The caller holds mu.
func (r *Registry) notifySleep() {
	for w := range r.watches {
		if w.sleeps {
			w.notify()
		}
	}
}

// Pause stops the processes of the sandbox until [Registry.Thaw]: no hold wakes it, also where it
// slept before. It returns the errors of the processes.
func (r *Registry) Pause(ctx context.Context) error {
	r.cancelFreeze()
	r.turn <- struct{}{}
	defer r.yield()
	r.mu.Lock()
	r.endSleep(r.asleep)
	r.mu.Unlock()
	return r.processes.Freeze(ctx)
}

// Thaw continues the processes of a sandbox that is paused or sleeps; with onlyAsleep not those of
// one that is paused. The quiet time begins again in each case, so that a sandbox that was about to
// fall asleep does not. It returns the errors of the processes.
func (r *Registry) Thaw(onlyAsleep bool) error {
	r.cancelFreeze()
	r.turn <- struct{}{}
	defer r.yield()
	r.mu.Lock()
	s := r.asleep
	r.touch()
	r.mu.Unlock()
	if s == nil && onlyAsleep {
		return nil
	}
	if err := r.processes.Thaw(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSleep(s)
	return nil
}

// cancelFreeze ends the freeze of a sandbox that is falling asleep: its processes are thawed, or
// paused.
func (r *Registry) cancelFreeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asleep != nil {
		r.asleep.cancel(errWoken)
	}
}

// AwaitAwake returns once the sandbox runs that slept when the hold began, at once where it did not
// sleep or holds do not wake it, and when ctx ends.
func (h *Hold) AwaitAwake(ctx context.Context) {
	if h == nil || h.wakes == nil {
		return
	}
	select {
	case <-h.wakes.over:
	case <-ctx.Done():
	}
}

// loadedSince returns since when processor time is a hold, the zero time where it is none. The
// caller holds mu.
func (r *Registry) loadedSince() time.Time {
	var loaded time.Time
	for w := range r.watches {
		if !w.loaded.IsZero() && (loaded.IsZero() || w.loaded.Before(loaded)) {
			loaded = w.loaded
		}
	}
	return loaded
}

// asleepNow returns the sleep that is reported: that of a sandbox whose processes are stopped. The
// caller holds mu.
func (r *Registry) asleepNow() *sleep {
	if r.asleep != nil && r.asleep.stopped {
		return r.asleep
	}
	return nil
}

// sleepChanged reports whether the watch has to report whether the sandbox sleeps. The caller holds
// mu.
func (w *Watch) sleepChanged() bool {
	s := w.registry.asleepNow()
	return w.sleeps && (!w.reported || s != w.slept || s != nil && s.wakes != w.waking)
}

// sleepEvent returns the event of whether the sandbox sleeps, and takes it for reported. The caller
// holds mu.
func (w *Watch) sleepEvent() Event {
	s := w.registry.asleepNow()
	w.reported, w.slept = true, s
	if s == nil {
		return Event{Awake: true}
	}
	w.waking = s.wakes
	return Event{Asleep: true, Wakes: s.wakes, Since: s.since}
}
