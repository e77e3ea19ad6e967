package e2b

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"sandbox.internal/server/lifecycle"
)

const (
	// lookInterval is how often all sandboxes are looked through: another replica may have set a
	// deadline, and paused ones are renewed.
	lookInterval = time.Minute
	// keepAhead is the least that a paused sandbox has to live: so long may the service be stopped.
	keepAhead = 23 * time.Hour
	// pauseMargin is how much later than the deadline the service's own expiry is at least, for a
	// sandbox that is to be paused at the deadline.
	pauseMargin = 5 * time.Minute
	// retryDelay is when a deadline is tried again that the backend could not keep.
	retryDelay = 5 * time.Second
	// maxChanges is how many sandboxes are paused or ended at once: each may take a second, and many
	// have the same deadline.
	maxChanges = 16
)

// deadlines are when sandboxes are to be ended or paused.
type deadlines struct {
	mu      sync.Mutex
	byID    map[string]deadline
	look    int           // the number of the latest look through all sandboxes
	changed chan struct{} // has an element when one was set
}

// deadline is when a sandbox is to be looked at, and the look through all sandboxes that it was set
// in or after.
type deadline struct {
	at   time.Time
	look int
}

func newDeadlines() deadlines {
	return deadlines{byID: map[string]deadline{}, changed: make(chan struct{}, 1)}
}

// set has the sandbox looked at when its deadline comes.
func (d *deadlines) set(id string, at time.Time) {
	d.mu.Lock()
	d.byID[id] = deadline{at, d.look}
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default: // [Edge.Keep] is about to look
	}
}

// beginLook begins a look through all sandboxes, which sets the deadline of each that there is.
func (d *deadlines) beginLook() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look++
}

// endLook forgets the deadlines that were not set since the look began: of sandboxes that have
// ended before.
func (d *deadlines) endLook() {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.byID, func(_ string, known deadline) bool { return known.look < d.look })
}

// due takes out those whose time has come, and returns how long until the next one's.
func (d *deadlines) due(now time.Time) (ids []string, wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait = lookInterval
	for id, known := range d.byID {
		if left := known.at.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		delete(d.byID, id)
		ids = append(ids, id)
	}
	return ids, wait
}

// expiryFor returns the expiry of the service for a sandbox with a deadline: the deadline, a minute
// at least, and later where the sandbox is paused then.
func (e *Edge) expiryFor(deadline time.Time, metadata map[string]string) time.Time {
	now := e.Clock()
	expiry := deadline
	if pausesAtDeadline(metadata) {
		expiry = expiry.Add(pauseMargin)
	}
	if least := now.Add(lifecycle.MinTimeout); expiry.Before(least) {
		expiry = least
	}
	if most := now.Add(lifecycle.MaxTimeout); expiry.After(most) {
		expiry = most
	}
	return expiry
}

// Keep ends or pauses sandboxes at their deadlines, and keeps paused ones from expiring, until ctx
// ends. A deadline is in the sandbox's metadata, so that it outlives the service.
func (e *Edge) Keep(ctx context.Context) {
	look := time.NewTimer(0)
	defer look.Stop()
	next := time.NewTimer(lookInterval)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			e.lookThrough(ctx)
			look.Reset(lookInterval)
		case <-next.C:
		case <-e.deadlines.changed:
		}
		ids, wait := e.deadlines.due(e.Clock())
		var group errgroup.Group
		group.SetLimit(maxChanges)
		for _, id := range ids {
			group.Go(func() error { e.keep(ctx, id); return nil })
		}
		_ = group.Wait() // keep logs its errors
		next.Reset(wait)
	}
}

// lookThrough reads the deadlines of all sandboxes.
func (e *Edge) lookThrough(ctx context.Context) {
	e.deadlines.beginLook()
	states := []lifecycle.State{lifecycle.StateRunning, lifecycle.StatePausing, lifecycle.StatePaused, lifecycle.StateResuming}
	for number := 1; ; number++ {
		listing, err := e.Backend.List(ctx, lifecycle.Filter{States: states}, lifecycle.Page{Number: number, Size: lifecycle.MaxPageSize})
		if err != nil {
			e.log(ctx, err, "", "cannot list the sandboxes")
			return
		}
		for _, sandbox := range listing.Items {
			if _, ours := sandbox.Metadata[deadlineKey]; ours {
				e.deadlines.set(sandbox.ID, endOf(sandbox))
			}
		}
		if number*lifecycle.MaxPageSize >= listing.Total {
			e.deadlines.endLook()
			return
		}
	}
}

// keep does what is due for one sandbox.
func (e *Edge) keep(ctx context.Context, id string) {
	sandbox, err := e.Backend.Read(ctx, id)
	if err != nil {
		e.retry(ctx, err, id, "cannot read a sandbox whose deadline has come")
		return
	}
	deadline := endOf(sandbox)
	switch state := sandbox.Status.State; {
	case !isAlive(state):
	// One that is only idle has its deadline nevertheless: nothing would end it otherwise.
	case state == lifecycle.StatePaused && !sandbox.Status.Reason.IsIdle():
		if sandbox.ExpiresAt.Sub(e.Clock()) >= keepAhead {
			return
		}
		// A minute less than the most: the backend's clock is read later, and on a cluster it is
		// another one.
		_, err := e.Backend.Renew(ctx, id, e.Clock().Add(lifecycle.MaxTimeout-time.Minute))
		e.retry(ctx, err, id, "cannot extend the expiry of a paused sandbox")
	case deadline.After(e.Clock()):
		e.deadlines.set(id, deadline)
	case state.Transient():
		e.deadlines.set(id, e.Clock().Add(time.Second))
	case pausesAtDeadline(sandbox.Metadata):
		pauses := e.Backend.Pause
		if sandbox.Metadata[onTimeoutKey] == pauseFiles && e.Suspend != nil {
			pauses = e.Suspend
		}
		if err := pauses(ctx, id); err != nil {
			e.retry(ctx, err, id, "cannot pause a sandbox at its deadline")
			return
		}
		e.deadlines.set(id, e.Clock().Add(time.Second)) // it is renewed then
	default:
		e.retry(ctx, e.Backend.Delete(ctx, id), id, "cannot end a sandbox at its deadline")
	}
}

// retry logs what kept a deadline from being kept, and has it tried again.
func (e *Edge) retry(ctx context.Context, err error, id, message string) {
	if isOver(err) || ctx.Err() != nil {
		return
	}
	e.log(ctx, err, id, message)
	e.deadlines.set(id, e.Clock().Add(retryDelay))
}

// isOver reports whether there was no error, or the sandbox has ended.
func isOver(err error) bool {
	var known *lifecycle.Error
	return err == nil || errors.As(err, &known) && (known.Kind == lifecycle.KindNotFound || known.Kind == lifecycle.KindConflict)
}

// log writes down an error. A sandbox that has ended is none.
func (e *Edge) log(ctx context.Context, err error, id, message string) {
	if isOver(err) || ctx.Err() != nil {
		return
	}
	e.Logger.Warn().Err(err).Str("sandbox_id", id).Msg(message)
}
