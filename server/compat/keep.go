package compat

import (
	"context"
	"errors"
	"time"

	"sandbox.internal/server/lifecycle"
)

const (
	// keepInterval is how often the sandboxes are looked through; another replica may have given a
	// promise.
	keepInterval = time.Minute
	// keepAhead is the least that a sandbox without expiry has to live: so long may the service be
	// stopped.
	keepAhead = 23 * time.Hour
)

// Backend is what an [Edge] keeps promises with, and reads events and tokens from: a part of
// [lifecycle.Backend].
type Backend interface {
	Get(ctx context.Context, id string) (lifecycle.Sandbox, error)
	List(ctx context.Context, filter lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error)
	Renew(ctx context.Context, id string, expiresAt time.Time) (time.Time, error)
	Delete(ctx context.Context, id string) error
	Locate(ctx context.Context, id string, port int) (lifecycle.Location, error)
	Events(ctx context.Context, selection lifecycle.EventSelection) (lifecycle.EventFeed, error)
}

// expiryChanged makes Keep look at once.
func (e *Edge) expiryChanged() {
	select {
	case e.changed <- struct{}{}:
	default: // it is about to
	}
}

// Keep renews the sandboxes that never expire and deletes those whose requested time has come,
// until ctx ends. Every sandbox of the service has an expiry of its own, which is the most that the
// lifecycle document allows; what the client asked for is in its metadata, so that it outlives the
// service.
func (e *Edge) Keep(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.changed:
		}
		timer.Reset(e.sweep(ctx))
	}
}

// sweep keeps what is due, and returns how long nothing will be.
func (e *Edge) sweep(ctx context.Context) (wait time.Duration) {
	wait = keepInterval
	for number := 1; ; number++ {
		listing, err := e.Backend.List(ctx, lifecycle.Filter{States: livingStates()}, lifecycle.Page{Number: number, Size: lifecycle.MaxPageSize})
		if err != nil {
			e.log(ctx, err, "")
			return wait
		}
		for _, sandbox := range listing.Items {
			if due := e.keep(ctx, sandbox); due > 0 {
				wait = min(wait, due)
			}
		}
		if number*lifecycle.MaxPageSize >= listing.Total {
			return wait
		}
	}
}

// keep does what is due for one sandbox. It returns how long until something is, 0 for unknown.
func (e *Edge) keep(ctx context.Context, sandbox lifecycle.Sandbox) time.Duration {
	requested, ok := sandbox.Metadata[expiryKey]
	if !ok {
		return 0
	}
	now := e.Clock()
	if requested == never {
		if sandbox.ExpiresAt.Sub(now) < keepAhead {
			// A minute less than the most: the backend's clock is read later, and on a cluster it
			// is another one.
			_, err := e.Backend.Renew(ctx, sandbox.ID, now.Add(lifecycle.MaxTimeout-time.Minute))
			e.log(ctx, err, sandbox.ID)
		}
		return 0
	}
	at, ok := earlier(requested, sandbox.ExpiresAt)
	if ok && !at.After(now) {
		// The client may have renewed it since the listing.
		latest, err := e.Backend.Get(ctx, sandbox.ID)
		if err != nil {
			e.log(ctx, err, sandbox.ID)
			return 0
		}
		at, ok = earlier(latest.Metadata[expiryKey], latest.ExpiresAt)
	}
	switch {
	case !ok:
		return 0
	case at.After(now):
		return at.Sub(now)
	}
	e.log(ctx, e.Backend.Delete(ctx, sandbox.ID), sandbox.ID)
	return 0
}

// log writes down what kept a promise from being kept. A sandbox that ends meanwhile is no failure.
func (e *Edge) log(ctx context.Context, err error, id string) {
	var known *lifecycle.Error
	if err == nil || ctx.Err() != nil ||
		errors.As(err, &known) && (known.Kind == lifecycle.KindNotFound || known.Kind == lifecycle.KindConflict) {
		return
	}
	e.Logger.Warn().Err(err).Str("sandbox_id", id).Msg("cannot extend the expiry of a sandbox; retried within a minute")
}
