package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

const (
	// wakeTimeout is how long a request waits for a sandbox that is being woken.
	wakeTimeout = 30 * time.Second
	// settleTime is how long a sandbox must have rested once more, after packets to it are watched,
	// before it is frozen: execd has taken by then what came before. It is doubled up to
	// longestSettle while the engine takes longer than that to begin the watch.
	settleTime    = 25 * time.Millisecond
	longestSettle = 2 * time.Second
	// shortestSleep is how long a sandbox must have until the time that it wants to be woken at: what
	// is in it could have it frozen and thawed, and each time recorded, many times per second.
	shortestSleep = time.Second
	// The pauses between attempts to follow the rest of a sandbox.
	firstIdlePause   = 100 * time.Millisecond
	longestIdlePause = 30 * time.Second
)

var (
	// errAwake: something keeps the sandbox awake, or has just come to it.
	errAwake = errors.New("the sandbox is awake")
	// errRested: the sandbox has rested for long enough.
	errRested = errors.New("the sandbox has rested")
)

// sleep is what an actor has in memory for falling asleep and waking. It belongs to the actor's
// goroutine.
type sleep struct {
	rest    *restWatch    // follows the sandbox's rest in this period of Running; nil when nothing does
	ears    *ears         // hears packets to a sandbox that sleeps, or is about to; nil when nothing does
	deaf    bool          // packets cannot be heard
	woken   bool          // it is to be woken once it is Paused
	thawing bool          // it is being woken
	again   time.Time     // when what was due and could not be saved is tried again
	stirs   chan struct{} // has an element when ears may have heard something
}

// restWatch is the watch of one period of Running and the sleep after it.
type restWatch struct {
	run      int64 // the period
	settings lifecycle.Lifecycle
	cancel   context.CancelFunc
}

// ears hear packets to the box until they are shut.
type ears struct {
	heard atomic.Bool
	shut  context.CancelFunc
}

// mayHear reports whether packets to a sandbox wake it.
func (h *Host) mayHear(settings lifecycle.Lifecycle) bool {
	return settings.AutoResume && h.options.Boxes.SleepUnsupported() == nil
}

// checkLifecycle returns an error for what cannot be had here.
func (h *Host) checkLifecycle(settings *lifecycle.Lifecycle) error {
	if settings == nil || settings.OnIdle != lifecycle.OnIdlePause {
		return nil
	}
	return h.options.Boxes.SleepUnsupported()
}

// attend begins and ends what the sandbox needs to fall asleep and to be woken, and wakes it when
// it is to be woken.
func (a *actor) attend() {
	sandbox := &a.record.Sandbox
	settings, state := sandbox.Settings(), a.state()
	if rest := a.sleep.rest; rest != nil && !a.follows(rest) {
		rest.cancel()
		a.sleep.rest = nil
	}
	if a.sleep.rest == nil && state == lifecycle.StateRunning && settings.OnIdle != lifecycle.OnIdleNone && a.record.Port != 0 {
		a.followRest(settings)
	}
	if !sandbox.Sleeps() {
		a.sleep.woken, a.sleep.deaf = false, false
		a.hear(nil)
		return
	}
	if !settings.AutoResume {
		a.hear(nil)
	}
	if ears := a.sleep.ears; ears != nil && ears.heard.Load() {
		a.sleep.woken = true
	}
	if a.sleep.woken && state == lifecycle.StatePaused && a.cancelRunning == nil {
		a.sleep.thawing = true
		a.start(a.wakeUp)
	}
}

// wakeUp is the job of a sandbox that sleeps and is to be woken. What has woken it waits: the box
// is thawed first, and that is recorded afterwards. A service that is started between finds the box
// running. Where that fails it is Resuming, as if it was resumed.
func (a *actor) wakeUp(ctx context.Context, record lifecycle.Record) func() {
	err := a.host.options.Boxes.Thaw(ctx, record)
	if err == nil {
		a.thaws.Add(1)
		a.nudge()
	}
	return func() {
		a.sleep.thawing = false
		if a.state() != lifecycle.StatePaused || !a.record.Sandbox.Sleeps() {
			return // it has ended
		}
		a.sleep.woken = false
		a.recordTransition(lifecycle.TriggerResume, lifecycle.ReasonWoken, "is being woken")
		if err == nil {
			a.recordTransition(lifecycle.TriggerResumed, lifecycle.ReasonContainerRunning, "woken")
		}
	}
}

// follows reports whether the watch is still of use. That of a sandbox that sleeps is, whatever the
// settings are by now: it may bring what the sandbox wrote before it was frozen.
func (a *actor) follows(rest *restWatch) bool {
	if rest.run != a.runs.Load() {
		return false
	}
	if a.state() == lifecycle.StateRunning {
		settings := a.record.Sandbox.Settings()
		return settings.OnIdle == rest.settings.OnIdle && settings.Idle == rest.settings.Idle
	}
	return a.record.Sandbox.Sleeps() && a.record.Sandbox.Status.Reason == lifecycle.ReasonIdle
}

// hear replaces the ears, which are shut.
func (a *actor) hear(by *ears) {
	if a.sleep.ears != nil {
		a.sleep.ears.shut()
	}
	a.sleep.ears = by
}

// listen begins to hear packets to the box. Ears that are not shut are when the host ends.
func (a *actor) listen(ctx context.Context, record lifecycle.Record) (*ears, error) {
	made := &ears{}
	stop, err := a.host.options.Boxes.WatchTraffic(ctx, record, func() {
		made.heard.Store(true)
		select {
		case a.sleep.stirs <- struct{}{}:
		default: // the actor is about to look
		}
	})
	if err != nil {
		return nil, err
	}
	var open context.Context
	open, made.shut = context.WithCancel(a.host.ctx)
	a.host.tasks.Go(func() {
		<-open.Done()
		stop()
	})
	return made, nil
}

// listenAgain is the job of a sandbox that sleeps and that nothing hears, as after a restart.
func (a *actor) listenAgain(ctx context.Context, record lifecycle.Record) func() {
	var made *ears
	err := a.retry(ctx, "listen", func(ctx context.Context) (err error) {
		made, err = a.listen(ctx, record)
		return err
	})
	switch {
	case err == nil:
		return func() { a.hear(made) }
	case missing(err):
		return a.inspect(ctx, record)
	case ctx.Err() != nil:
		return nil
	}
	a.log.Warn().Err(err).Msg("packets to a sandbox that sleeps cannot be watched; only requests through the service wake it")
	return func() { a.sleep.deaf = true }
}

// freezeAsleep is the job of Pausing for a sandbox that packets are to wake: they are heard from
// before it is frozen.
func (a *actor) freezeAsleep(ctx context.Context, record lifecycle.Record) func() {
	made, err := a.listen(ctx, record)
	if err != nil && ctx.Err() == nil && !missing(err) {
		a.log.Warn().Err(err).Msg("packets to a sandbox that is being frozen cannot be watched yet")
	}
	frozen := a.freeze(ctx, record)
	return func() {
		if made != nil {
			a.hear(made)
		}
		if frozen != nil {
			frozen()
		}
	}
}

// followRest begins to follow the sandbox's rest.
func (a *actor) followRest(settings lifecycle.Lifecycle) {
	ctx, cancel := context.WithCancel(a.host.ctx)
	rest := &restWatch{run: a.runs.Load(), settings: settings, cancel: cancel}
	a.sleep.rest = rest
	record := a.record.Clone()
	a.host.tasks.Go(func() {
		defer cancel()
		a.followUntilGone(ctx, rest, record)
	})
}

// followUntilGone follows the sandbox's rest until ctx ends, and begins again when the report ends.
func (a *actor) followUntilGone(ctx context.Context, rest *restWatch, record lifecycle.Record) {
	pause := firstIdlePause
	for ctx.Err() == nil {
		began := time.Now()
		err := a.letRest(ctx, rest, record)
		if ctx.Err() != nil {
			return
		}
		// What was written last may not have come: a sandbox that sleeps is woken.
		_ = a.do(ctx, func() error { a.stir(rest); return nil })
		if errors.Is(err, errAwake) {
			continue
		}
		if time.Since(began) > longestIdlePause {
			pause = firstIdlePause
		}
		a.log.Warn().Err(err).Dur("retry_in", pause).Msg("cannot follow whether the sandbox is idle")
		clock.Sleep(ctx, pause)
		pause = min(2*pause, longestIdlePause)
	}
}

// stir wakes a sandbox that has fallen asleep because it rested.
func (a *actor) stir(rest *restWatch) {
	if a.sleep.rest == rest && a.record.Sandbox.Sleeps() {
		a.sleep.woken = true
	}
}

// letRest waits until the sandbox has rested for long enough, and lets it fall asleep, or end. Then
// it follows the sandbox's report on, and wakes it for what the sandbox wrote before it was frozen.
// It returns why it does not follow any more: errAwake when it is to begin again at once.
func (a *actor) letRest(ctx context.Context, rest *restWatch, record lifecycle.Record) error {
	began := time.Now()
	err := a.host.options.Boxes.WatchIdle(ctx, record, rest.settings.Idle, func() error { return nil },
		func(event lifecycle.IdleEvent) error {
			if !event.Idle {
				return nil
			}
			// What is in the sandbox may have taken execd's place, and say it at once.
			clock.Sleep(ctx, rest.settings.Idle-time.Since(began))
			return errRested
		})
	if !errors.Is(err, errRested) || ctx.Err() != nil {
		return err
	}
	if rest.settings.OnIdle == lifecycle.OnIdleDelete {
		return a.do(ctx, func() error { return a.endIdle(rest) })
	}
	for settle := settleTime; settle <= longestSettle; settle *= 2 {
		if err = a.settle(ctx, rest, record, settle); !errors.Is(err, errRested) {
			return err
		}
	}
	return errors.New("the engine takes too long to watch packets to the sandbox")
}

// settle begins to hear packets to the box and has the sandbox rest for a moment more. Whatever was
// on its way before the ears were open has reached execd when that reports the rest, so it is
// reported; what comes later is heard. The report's request itself is not: it has arrived when the
// report begins. It returns errRested when it took so long to open the ears that a rest from then
// on was not certain.
func (a *actor) settle(ctx context.Context, rest *restWatch, record lifecycle.Record, settle time.Duration) error {
	hears := a.host.mayHear(a.snapshot().Sandbox.Settings())
	var opened *ears
	asleep := false
	defer func() {
		if opened != nil && !asleep {
			opened.shut()
		}
	}()
	began, open := time.Now(), time.Time{}
	return a.host.options.Boxes.WatchIdle(ctx, record, settle,
		func() (err error) {
			if hears {
				opened, err = a.listen(ctx, record)
			}
			open = time.Now()
			return err
		},
		func(event lifecycle.IdleEvent) error {
			switch {
			case asleep: // what it wrote last
				return a.do(ctx, func() error { a.stir(rest); return nil })
			case !event.Idle:
				return errAwake
			case open.Sub(began) >= settle:
				return errRested
			}
			clock.Sleep(ctx, settle-time.Since(began)) // as above
			asleep = true
			err := a.do(ctx, func() error { return a.fallAsleep(rest, opened, event.WakeAt) })
			if err != nil {
				asleep = false
			}
			return err
		})
}

// fallAsleep makes the sandbox Pausing because nothing keeps it awake. From then on the ears are
// the actor's.
func (a *actor) fallAsleep(rest *restWatch, opened *ears, wakeAt time.Time) error {
	settings, now := a.record.Sandbox.Settings(), a.host.options.Clock()
	hears := a.host.mayHear(settings)
	switch {
	case a.sleep.rest != rest || a.state() != lifecycle.StateRunning || hears && opened == nil,
		opened != nil && opened.heard.Load(),
		!wakeAt.IsZero() && wakeAt.Before(now.Add(shortestSleep)):
		return errAwake
	}
	record, err := a.afterTransition(lifecycle.TriggerPause, lifecycle.Status{
		Reason: lifecycle.ReasonIdle, Message: fmt.Sprintf("asleep: no request, program or timer has kept the sandbox awake for %v", settings.Idle),
	})
	if err != nil {
		return err
	}
	record.WakeAt = wakeAt
	// It is frozen only once that is saved: else a restarted service could not know that it sleeps.
	if err := a.commit(a.durabilityOf(lifecycle.TriggerPause, record), record, a.eventsTo(record)...); err != nil {
		return err
	}
	a.hear(opened)
	return nil
}

// endIdle ends the sandbox because nothing keeps it awake.
func (a *actor) endIdle(rest *restWatch) error {
	if a.sleep.rest != rest || a.state() != lifecycle.StateRunning {
		return errAwake
	}
	message := fmt.Sprintf("no request, program or timer has kept the sandbox awake for %v", rest.settings.Idle)
	if err := a.request(lifecycle.TriggerDelete, lifecycle.ReasonIdle, message); err != nil {
		return err
	}
	a.cancelJob()
	return nil
}

// needsEars reports whether nothing hears packets to the sandbox, which sleeps or is about to, and
// they are to wake it.
func (a *actor) needsEars() bool {
	return a.record.Sandbox.Sleeps() && a.sleep.ears == nil && !a.sleep.deaf && a.host.mayHear(a.record.Sandbox.Settings())
}

// wakesByItself reports whether the sandbox sleeps and is to be woken at a time.
func wakesByItself(record *lifecycle.Record) bool {
	return !record.WakeAt.IsZero() && record.Sandbox.Status.State == lifecycle.StatePaused && record.Sandbox.Wakes()
}

// pausesAtTimeout reports whether the sandbox is paused when its time is up.
func pausesAtTimeout(record *lifecycle.Record) bool {
	return record.Sandbox.Settings().OnTimeout == lifecycle.OnTimeoutPause && !record.TimedOut &&
		record.Sandbox.Status.State != lifecycle.StatePending
}

// timeOut pauses the sandbox because its time is up; one that is Paused already stays so. It ends
// when it has not been resumed until the longest time to live is over.
func (a *actor) timeOut() {
	record, now := a.record, a.host.options.Clock()
	if a.state() == lifecycle.StateRunning {
		var err error
		if record, err = a.afterTransition(lifecycle.TriggerPause, lifecycle.Status{
			Reason: lifecycle.ReasonTimeout, Message: "asleep: the time of the sandbox is up",
		}); err != nil {
			return // the table has it
		}
	}
	record.TimedOut = true
	record.Sandbox.ExpiresAt = wall(now.UTC().Add(cmp.Or(record.MaxTimeout, lifecycle.MaxTimeout)))
	if err := a.commit(synced, record, a.eventsTo(record)...); err != nil {
		a.log.Error().Err(err).Msg("cannot save that the time of a sandbox is up; retrying")
		a.sleep.again = now.Add(saveInterval)
	}
}
