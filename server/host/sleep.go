package host

import (
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
	// confirmTime is how long a sandbox must be idle once more, after packets to it are watched,
	// before it is frozen: execd has taken by then what came before. It is doubled up to
	// longestConfirm while the engine takes longer than that to begin the watch.
	confirmTime    = 25 * time.Millisecond
	longestConfirm = 2 * time.Second
	// shortestSleep is how long a sandbox must have until the time that it wants to be woken at:
	// what is in it could have it frozen and thawed, and each time recorded, many times per second.
	shortestSleep = time.Second
	// The pauses between attempts to follow whether a sandbox is idle.
	firstIdlePause   = 100 * time.Millisecond
	longestIdlePause = 30 * time.Second
	// failedWakePause is how long a sandbox that could not be brought back from the disk stays
	// there: requests would have it tried without end.
	failedWakePause = time.Second
)

var (
	// errBusy: something keeps the sandbox awake, or has just come to it.
	errBusy = errors.New("the sandbox is awake")
	// errIdle: the sandbox has been idle for long enough.
	errIdle = errors.New("the sandbox is idle")
)

// sleep is what an actor has in memory for falling asleep and waking. It belongs to the actor's
// goroutine.
type sleep struct {
	idle    *idleWatch   // follows whether the sandbox is idle in this period of Running; nil when nothing does
	packets *packetWatch // reports packets to a sandbox that sleeps, or is about to; nil when nothing does
	woken   bool         // it is to be woken once it is Paused
	thawing bool         // it is being woken
	again   time.Time    // when what was due and could not be saved is tried again

	queued         bool          // the job that runs waits until the sandbox may go to the disk
	hibernateNow   bool          // it goes to the disk before its time
	hibernateAgain time.Time     // when the sandbox is brought to the disk, after an attempt that has failed
	hibernatePause time.Duration // the pause before that
	wakeAgain      time.Time     // when the sandbox is woken at the earliest, after an attempt that has failed
	ports          *packetWatch  // has connections to published ports wait, and reports them; nil when nothing does
	portsAgain     time.Time     // when that is tried again, after an attempt that has failed
	reports        chan struct{} // has an element when packets may have been seen
}

// idleWatch is the watch of one period of Running and the sleep after it.
type idleWatch struct {
	run      int64 // the period
	settings lifecycle.Lifecycle
	port     int // execd's, in that period
	cancel   context.CancelFunc
}

// packetWatch reports whether packets to the box were seen, until it is stopped.
type packetWatch struct {
	seen atomic.Bool
	stop context.CancelFunc
}

// packetsWake reports whether packets to a sandbox wake it.
func (h *Host) packetsWake(settings lifecycle.Lifecycle) bool {
	return settings.AutoResume && h.options.Boxes.SleepUnsupported() == nil
}

// checkLifecycle returns an error for what cannot be had here.
func (h *Host) checkLifecycle(settings *lifecycle.Lifecycle) error {
	if settings == nil || !settings.OnIdle.Sleeps() {
		return nil
	}
	if settings.OnIdle == lifecycle.OnIdleHibernate {
		if err := h.options.Boxes.HibernationUnsupported(); err != nil {
			return err
		}
	}
	return h.options.Boxes.SleepUnsupported()
}

// updateSleep begins and ends what the sandbox needs to fall asleep and to be woken, and wakes it
// when it is to be woken.
func (a *actor) updateSleep() {
	sandbox := &a.record.Sandbox
	settings, state := sandbox.Settings(), a.state()
	if idle := a.sleep.idle; idle != nil && !a.follows(idle) {
		idle.cancel()
		a.sleep.idle = nil
	}
	if a.sleep.idle == nil && state == lifecycle.StateRunning && settings.OnIdle != lifecycle.OnIdleNone && a.record.Port != 0 {
		a.followIdle(settings)
	}
	a.updatePorts()
	if !sandbox.Sleeps() {
		a.sleep.woken = false
		a.setPacketWatch(nil)
		return
	}
	if !settings.AutoResume || a.processesEnd() {
		a.setPacketWatch(nil)
	}
	if packets := a.sleep.packets; packets != nil && packets.seen.Load() {
		a.sleep.woken = true
	}
	switch {
	case !a.sleep.woken || state != lifecycle.StatePaused || a.cancelRunning != nil || a.record.Hibernation == lifecycle.HibernationBegun:
	case a.record.Stopped:
		if a.untilWake() == 0 {
			a.wakeFromDisk()
		}
	default:
		a.sleep.thawing = true
		a.start(a.wakeUp)
	}
}

// untilWake returns how long a sandbox that is on the disk and is to be woken waits for that; an
// hour for any other.
func (a *actor) untilWake() time.Duration {
	if !a.sleep.woken || !a.record.Stopped {
		return time.Hour
	}
	return max(0, a.sleep.wakeAgain.Sub(a.host.options.Clock()))
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
func (a *actor) follows(idle *idleWatch) bool {
	if idle.run != a.runs.Load() || idle.port != a.record.Port {
		return false
	}
	if a.state() == lifecycle.StateRunning {
		settings := a.record.Sandbox.Settings()
		return settings.OnIdle == idle.settings.OnIdle && settings.Idle == idle.settings.Idle
	}
	// That of a sandbox that is being brought to the disk ends with its processes.
	return a.record.Sandbox.Sleeps() && a.record.Sandbox.Status.Reason == lifecycle.ReasonIdle && a.record.Hibernation == ""
}

// setPacketWatch replaces the watch of packets, which is stopped.
func (a *actor) setPacketWatch(by *packetWatch) {
	if a.sleep.packets != nil {
		a.sleep.packets.stop()
	}
	a.sleep.packets = by
}

// watchPackets begins to watch packets to the box, at most until the host ends.
func (a *actor) watchPackets(ctx context.Context, record lifecycle.Record) (*packetWatch, error) {
	made := &packetWatch{}
	stop, err := a.host.options.Boxes.WatchTraffic(ctx, record, func() {
		made.seen.Store(true)
		a.reportPackets()
	})
	if err != nil {
		return nil, err
	}
	var open context.Context
	open, made.stop = context.WithCancel(a.host.ctx)
	a.host.tasks.Go(func() {
		<-open.Done()
		stop()
	})
	return made, nil
}

// reportPackets has the actor look for packets that were seen.
func (a *actor) reportPackets() {
	select {
	case a.sleep.reports <- struct{}{}:
	default: // the actor is about to look
	}
}

// watchPacketsAgain is the job of a sandbox that sleeps without a watch of its packets, as after a
// restart.
func (a *actor) watchPacketsAgain(ctx context.Context, record lifecycle.Record) func() {
	var made *packetWatch
	err := a.retry(ctx, "watch packets", func(ctx context.Context) (err error) {
		made, err = a.watchPackets(ctx, record)
		return err
	})
	switch {
	case err == nil:
		return func() { a.setPacketWatch(made) }
	case missing(err):
		return a.inspect(ctx, record)
	case ctx.Err() != nil:
		return nil
	}
	a.log.Warn().Err(err).Msg("cannot watch packets to a sandbox that sleeps, which is woken")
	return func() { a.sleep.woken = true }
}

// freezeWatched is the job of Pausing for a sandbox that packets are to wake: they are watched from
// before it is frozen.
func (a *actor) freezeWatched(ctx context.Context, record lifecycle.Record) func() {
	made, err := a.watchPackets(ctx, record)
	if err != nil && ctx.Err() == nil && !missing(err) {
		a.log.Warn().Err(err).Msg("packets to a sandbox that is being frozen cannot be watched yet")
	}
	frozen := a.freeze(ctx, record)
	return func() {
		if made != nil {
			a.setPacketWatch(made)
		}
		if frozen != nil {
			frozen()
		}
	}
}

// followIdle begins to follow whether the sandbox is idle.
func (a *actor) followIdle(settings lifecycle.Lifecycle) {
	ctx, cancel := context.WithCancel(a.host.ctx)
	idle := &idleWatch{run: a.runs.Load(), settings: settings, port: a.record.Port, cancel: cancel}
	a.sleep.idle = idle
	record := a.record
	record.Spec = lifecycle.Spec{} // which may have a MiB
	record = record.Clone()
	a.host.tasks.Go(func() {
		defer cancel()
		a.followUntilGone(ctx, idle, record)
	})
}

// followUntilGone follows whether the sandbox is idle until ctx ends, and begins again when the
// report ends.
func (a *actor) followUntilGone(ctx context.Context, idle *idleWatch, record lifecycle.Record) {
	pause := firstIdlePause
	for ctx.Err() == nil {
		began := time.Now()
		err := a.pauseWhenIdle(ctx, idle, record)
		if ctx.Err() != nil {
			return
		}
		// What was written last may not have come: a sandbox that sleeps is woken.
		_ = a.do(ctx, func() error { a.wakeIfAsleep(idle); return nil })
		if errors.Is(err, errBusy) {
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

// wakeIfAsleep wakes a sandbox that has fallen asleep because it was idle.
func (a *actor) wakeIfAsleep(idle *idleWatch) {
	if a.sleep.idle == idle && a.record.Sandbox.Sleeps() {
		a.sleep.woken = true
	}
}

// pauseWhenIdle waits until the sandbox has been idle for long enough, and lets it fall asleep, or
// end. Then it follows the sandbox's report on, and wakes it for what the sandbox wrote before it
// was frozen. It returns why it does not follow any more: errBusy when it is to begin again at
// once.
func (a *actor) pauseWhenIdle(ctx context.Context, idle *idleWatch, record lifecycle.Record) error {
	began := time.Now()
	err := a.host.options.Boxes.WatchIdle(ctx, record, idle.settings.Idle, func() error { return nil },
		func(event lifecycle.IdleEvent) error {
			if !event.Idle {
				return nil
			}
			// A program in the sandbox may have taken execd's place, and report it at once.
			clock.Sleep(ctx, idle.settings.Idle-time.Since(began))
			return errIdle
		})
	if !errors.Is(err, errIdle) || ctx.Err() != nil {
		return err
	}
	if idle.settings.OnIdle == lifecycle.OnIdleDelete {
		return a.do(ctx, func() error { return a.endIdle(idle) })
	}
	for length := confirmTime; length <= longestConfirm; length *= 2 {
		if err = a.confirmIdle(ctx, idle, record, length); !errors.Is(err, errIdle) {
			return err
		}
	}
	return errors.New("the engine takes too long to watch packets to the sandbox")
}

// confirmIdle begins to watch packets to the box and waits until the sandbox has been idle for a
// moment more. Packets that were on their way before the watch have reached execd when that reports
// idleness, so it reports them; later ones are seen by the watch. The report's request itself is
// not: it has arrived when the report begins. confirmIdle returns errIdle when the watch took so
// long to begin that it is not certain whether the sandbox was idle from then on.
func (a *actor) confirmIdle(ctx context.Context, idle *idleWatch, record lifecycle.Record, length time.Duration) error {
	watched := a.host.packetsWake(a.snapshot().Sandbox.Settings())
	var opened *packetWatch
	asleep := false
	defer func() {
		if opened != nil && !asleep {
			opened.stop()
		}
	}()
	began, open := time.Now(), time.Time{}
	return a.host.options.Boxes.WatchIdle(ctx, record, length,
		func() (err error) {
			if watched {
				opened, err = a.watchPackets(ctx, record)
			}
			open = time.Now()
			return err
		},
		func(event lifecycle.IdleEvent) error {
			switch {
			case asleep: // what it wrote last
				return a.do(ctx, func() error { a.wakeIfAsleep(idle); return nil })
			case !event.Idle:
				return errBusy
			case open.Sub(began) >= length:
				return errIdle
			}
			clock.Sleep(ctx, length-time.Since(began)) // as above
			asleep = true
			err := a.do(ctx, func() error { return a.fallAsleep(idle, opened, event.WakeAt) })
			if err != nil {
				asleep = false
			}
			return err
		})
}

// fallAsleep makes the sandbox Pausing because nothing keeps it awake. From then on the watch of
// packets is the actor's.
func (a *actor) fallAsleep(idle *idleWatch, opened *packetWatch, wakeAt time.Time) error {
	settings, now := a.record.Sandbox.Settings(), a.host.options.Clock()
	watched := a.host.packetsWake(settings)
	switch {
	case a.sleep.idle != idle || a.state() != lifecycle.StateRunning || watched && opened == nil,
		opened != nil && opened.seen.Load(),
		!wakeAt.IsZero() && wakeAt.Before(now.Add(shortestSleep)):
		return errBusy
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
	a.setPacketWatch(opened)
	return nil
}

// endIdle ends the sandbox because nothing keeps it awake.
func (a *actor) endIdle(idle *idleWatch) error {
	if a.sleep.idle != idle || a.state() != lifecycle.StateRunning {
		return errBusy
	}
	message := fmt.Sprintf("no request, program or timer has kept the sandbox awake for %v", idle.settings.Idle)
	if err := a.request(lifecycle.TriggerDelete, lifecycle.ReasonIdle, message); err != nil {
		return err
	}
	a.cancelJob()
	return nil
}

// needsPacketWatch reports whether packets are to wake the sandbox, which sleeps or is about to,
// and are not watched.
func (a *actor) needsPacketWatch() bool {
	return a.record.Sandbox.Sleeps() && !a.processesEnd() && a.sleep.packets == nil && a.host.packetsWake(a.record.Sandbox.Settings())
}

// processesEnd reports whether the processes of the sandbox have ended, or may be ending because it
// is being brought to the disk without them: what they send then, and the answers, wakes nothing.
func (a *actor) processesEnd() bool {
	return a.record.Stopped || a.record.Hibernation == lifecycle.HibernationBegun && !a.host.keepsProcesses(&a.record)
}

// wakesByItself reports whether the sandbox sleeps and is to be woken at a time.
func wakesByItself(record *lifecycle.Record) bool {
	return !record.WakeAt.IsZero() && record.Sandbox.Status.State == lifecycle.StatePaused && record.Sandbox.Wakes()
}
