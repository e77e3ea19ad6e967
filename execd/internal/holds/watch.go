package holds

import (
	"context"
	"errors"
	"time"
)

const (
	// maxWatches is how many watches there may be.
	maxWatches = 16

	// floor is from how many percent of one processor on its use is a hold.
	floor = 5
	// firstPart of the time that has to be quiet is not measured: what was used until then is read
	// at its end, so that no hold has to read it when it ends.
	firstPart = 8
	// shortestPause is the shortest time until it is looked again whether a request has arrived.
	shortestPause = time.Millisecond
	// idlePause is the shortest time between two measurements in an idle sandbox.
	idlePause = time.Second
)

// The errors of watches.
var (
	// ErrTooManyWatches is the error of a watch when there are as many as there may be.
	ErrTooManyWatches = errors.New("as many streams follow whether the sandbox is idle as there may be")
	// ErrGivenUp is the error of a watch that was not written to in time.
	ErrGivenUp = errors.New("the stream did not take in time that the sandbox is busy")
)

// Event is what a watch reports. With neither field it reports that there was nothing to report for
// a while.
type Event struct {
	Idle   bool
	Busy   Kind      // the kind of the hold that has ended the idleness
	WakeAt time.Time // in an idle one, when the sandbox is to be woken; zero for no time

	// Asleep says that the sandbox sleeps since a time, and whether requests wake it; Awake that it
	// does not. Watches have them that follow the sleep as well.
	Asleep, Awake, Wakes bool
	Since                time.Time
}

// Watch follows whether the sandbox is idle: an event that it is alternates with one that it is
// not.
type Watch struct {
	registry *Registry
	quiet    time.Duration
	sleeps   bool          // it follows whether the sandbox sleeps
	changed  chan struct{} // has an element when there may be something to write

	// These are under registry.mu.
	from      time.Time     // the quiet time is not counted from before it
	idle      bool          // the last event is that the sandbox is idle
	unwritten *announcement // nil when there is none
	parked    bool          // it waits for the end of the last hold
	givenUp   bool          // it was not written to in time
	loaded    time.Time     // since when processor time is a hold; zero when it is none
	reported  bool          // whether the sandbox sleeps
	slept     *sleep        // the sleep that was reported last; nil for none
	waking    bool          // whether requests end that sleep, as was reported

	// These belong to the goroutine of Follow.
	base   reading   // of the processor time
	baseOf time.Time // the beginning of the quiet time that it is of
	again  time.Time // when to look once more whether a request has arrived
}

// announcement is that the sandbox is busy, on its way to a stream.
type announcement struct {
	watch   *Watch
	kind    Kind
	written chan struct{} // closed when it is written, or never will be
}

// reading is the processor time that was used until a moment.
type reading struct {
	at   time.Time
	used time.Duration
}

// Watch returns a watch that reports the sandbox as idle when there has been no hold for a time,
// which begins now at the earliest. The caller calls [Watch.Follow] or [Watch.Close]. Watch returns
// ErrTooManyWatches.
func (r *Registry) Watch(quiet time.Duration) (*Watch, error) { return r.watch(quiet, false) }

// WatchSleep is [Registry.Watch] for a watch that also reports whether the sandbox sleeps: once at
// its beginning, and at each change. After a report that the sandbox is awake, and after a thaw,
// the sandbox is reported as idle once more.
func (r *Registry) WatchSleep(quiet time.Duration) (*Watch, error) { return r.watch(quiet, true) }

func (r *Registry) watch(quiet time.Duration, sleeps bool) (*Watch, error) {
	w := &Watch{sleeps: sleeps, registry: r, quiet: quiet, changed: make(chan struct{}, 1), from: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.watches) >= maxWatches {
		return nil, ErrTooManyWatches
	}
	r.watches[w] = struct{}{}
	return w, nil
}

// Close ends the watch: no hold waits for it any more.
func (w *Watch) Close() {
	w.registry.mu.Lock()
	defer w.registry.mu.Unlock()
	w.end()
}

// giveUp ends the watch, and has Follow return ErrGivenUp.
func (w *Watch) giveUp() {
	w.registry.mu.Lock()
	defer w.registry.mu.Unlock()
	w.givenUp = true
	w.end()
	w.notify()
}

// end takes the watch out of the registry. The caller holds mu.
func (w *Watch) end() {
	delete(w.registry.watches, w)
	w.idle = false
	if w.unwritten != nil {
		close(w.unwritten.written)
		w.unwritten = nil
	}
}

// begun is called when a hold begins, and returns what has to be written before its work; nil means
// nothing. The caller holds mu.
func (w *Watch) begun(kind Kind) *announcement {
	w.loaded = time.Time{} // nothing is measured while there is a hold
	if w.idle {
		w.announce(kind)
	}
	return w.unwritten
}

// announce has it written that the sandbox is busy. The caller holds mu.
func (w *Watch) announce(kind Kind) {
	w.idle = false
	w.unwritten = &announcement{watch: w, kind: kind, written: make(chan struct{})}
	w.notify()
}

// notify wakes Follow.
func (w *Watch) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Follow calls write with each event, and with an empty one after each such silence, until ctx ends
// or write returns an error, which Follow returns. It closes the watch.
func (w *Watch) Follow(ctx context.Context, silence time.Duration, write func(Event) error) error {
	defer w.Close()
	timer := time.NewTimer(silence)
	defer timer.Stop()
	spoken := time.Now()
	for {
		next := w.next(time.Now())
		switch {
		case next.err != nil:
			return next.err
		case next.event != Event{}:
			if err := write(next.event); err != nil {
				return err
			}
			if next.event.Busy != "" {
				w.wrote()
			}
			spoken = time.Now()
			continue
		case next.measure:
			if !w.measure(next.since) {
				continue
			}
			if err := write(Event{Idle: true, WakeAt: w.wakeAt()}); err != nil {
				return err
			}
			spoken = time.Now()
			continue
		}
		now := time.Now()
		if now.Sub(spoken) >= silence {
			if err := write(Event{}); err != nil {
				return err
			}
			spoken = now
		}
		wait := spoken.Add(silence).Sub(now)
		if !next.at.IsZero() {
			wait = min(wait, next.at.Sub(now))
		}
		timer.Reset(max(0, wait))
		select {
		case <-w.changed:
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// step is what a watch has to do next: return an error, write an event, measure, or wait.
type step struct {
	err     error
	event   Event
	measure bool
	since   time.Time // when the quiet time began that is to be measured
	at      time.Time // until when to wait; zero means for a change
}

// next returns what is to be done.
func (w *Watch) next(now time.Time) step {
	r := w.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	w.parked = false
	switch {
	case w.givenUp:
		return step{err: ErrGivenUp}
	case w.unwritten != nil:
		return step{event: Event{Busy: w.unwritten.kind}}
	case w.sleepChanged():
		return step{event: w.sleepEvent()}
	case r.count > 0:
		w.parked = true
		return step{}
	}
	since := w.quietSince()
	due := since.Add(w.quiet)
	switch {
	case !w.baseOf.Equal(since):
		due = since.Add(w.quiet / firstPart)
	case w.idle:
		due = w.base.at.Add(max(w.quiet, idlePause))
	default: // on a busy machine the first reading may have come late
		if late := w.base.at.Add(w.quiet / 2); late.After(due) {
			due = late
		}
	}
	if w.again.After(due) {
		due = w.again
	}
	if now.Before(due) {
		return step{at: due}
	}
	return step{measure: true, since: since}
}

// quietSince returns when the quiet time began. The caller holds mu.
func (w *Watch) quietSince() time.Time {
	if w.from.After(w.registry.idle) {
		return w.from
	}
	return w.registry.idle
}

// measure reads the processor time, and reports whether the sandbox is idle since it has been quiet
// for long enough.
func (w *Watch) measure(since time.Time) (idle bool) {
	now := w.read()
	r := w.registry
	first := !w.baseOf.Equal(since)
	// Whatever had arrived by now has a hold, or had one within the quiet time, or is seen here.
	arriving := !first && r.arriving != nil && r.arriving()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.givenUp || w.unwritten != nil || r.count > 0 || !since.Equal(w.quietSince()) {
		return false // the quiet time is over
	}
	if arriving && !w.idle {
		w.again = now.at.Add(min(max(w.quiet/firstPart, shortestPause), idlePause))
		return false
	}
	before := w.base
	w.base, w.baseOf = now, since
	if first {
		return false
	}
	if (now.used-before.used)*100 <= now.at.Sub(before.at)*floor {
		w.loaded = time.Time{}
		idle, w.idle = !w.idle, true
		return idle
	}
	if w.loaded.IsZero() {
		w.loaded = before.at
	}
	w.from, w.baseOf = now.at, now.at
	if w.idle {
		w.announce(Processor)
	}
	return false
}

// read returns the processor time that was used until now.
func (w *Watch) read() reading {
	used := w.base.used // which counts as none
	if w.registry.used != nil {
		if u, err := w.registry.used(); err == nil {
			used = u
		}
	}
	return reading{at: time.Now(), used: used}
}

// wrote notes that an event was written.
func (w *Watch) wrote() {
	w.registry.mu.Lock()
	defer w.registry.mu.Unlock()
	if w.unwritten != nil {
		close(w.unwritten.written)
		w.unwritten = nil
	}
}

// wakeAt returns when the sandbox is to be woken next.
func (w *Watch) wakeAt() time.Time {
	w.registry.mu.Lock()
	defer w.registry.mu.Unlock()
	return w.registry.nextWake(time.Now())
}
