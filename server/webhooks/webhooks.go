// Package webhooks sends the service's events to receivers as signed HTTP requests, by the rules of
// Standard Webhooks (https://www.standardwebhooks.com).
//
// Each webhook has a goroutine and a cursor of its own: the sequence of the last event that its
// receiver has accepted, in a file. So a receiver gets every event at least once and in order,
// whatever ends the service, and a slow one delays no other.
package webhooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// DefaultTimeout bounds one try: the connection, the request and what is read of the answer.
const DefaultTimeout = 15 * time.Second

// Feed is where events come from: a part of [lifecycle.Backend].
type Feed interface {
	Events(ctx context.Context, selection lifecycle.EventSelection) (lifecycle.EventFeed, error)
}

// Observer counts.
type Observer interface {
	// WebhookTried counts a try, before the cursor is written.
	WebhookTried(webhook string, delivered bool)
}

// Webhook is one receiver.
type Webhook struct {
	Name   string // in the log and in metrics: the URL may hold a secret
	URL    string
	Events []lifecycle.EventType // empty: all
	Key    []byte                // of the signatures
	// PreviousKey, unless it is nil, makes a second signature of each request.
	PreviousKey []byte
	// AllowPrivate permits addresses that are not public ones.
	AllowPrivate bool
}

// Options are what a [Dispatcher] is made of.
type Options struct {
	Webhooks  []Webhook // no two with the same URL and events
	Feed      Feed
	Directory string // of the cursors; no other process may use it
	// Body returns the JSON of an event. The type reset, which has no sandbox, stands for events
	// that are lost.
	Body     func(lifecycle.Event) ([]byte, error)
	Logger   zerolog.Logger
	Observer Observer
	Clock    func() time.Time
	// Sleep waits between two tries, as [clock.Sleep] does, which is the default.
	Sleep func(ctx context.Context, d time.Duration) bool
	// Timeout replaces DefaultTimeout.
	Timeout time.Duration
}

// Dispatcher delivers the events of a service to its webhooks.
type Dispatcher struct {
	hooks []*hook
	clock func() time.Time
}

// Open reads the cursors. A webhook without one begins with the next event. Cursors of webhooks
// that are not configured are removed.
func Open(ctx context.Context, o Options) (*Dispatcher, error) {
	if o.Sleep == nil {
		o.Sleep = clock.Sleep
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	o.Logger = o.Logger.With().Str("component", "webhooks").Logger()
	if len(o.Webhooks) > 0 {
		if err := os.MkdirAll(o.Directory, 0o700); err != nil {
			return nil, fmt.Errorf("directory of the webhooks' cursors: %w", err)
		}
	}
	d := &Dispatcher{clock: o.Clock}
	kept := map[string]bool{}
	for _, w := range o.Webhooks {
		h, err := newHook(o, w)
		if err == nil {
			err = h.begin(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		kept[h.file()] = true
		d.hooks = append(d.hooks, h)
	}
	return d, removeOthers(o.Directory, kept)
}

// begin reads the cursor, or writes that of the newest event where there is none.
func (h *hook) begin(ctx context.Context) error {
	at, err := readProgress(h.path)
	switch {
	case err == nil:
		h.at = at
		return nil
	case errors.Is(err, errUnreadable):
		h.logger.Error().Err(err).Msg("the cursor of a webhook is lost, and with it which events are undelivered")
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	newest, beginErr := h.newest(ctx)
	if beginErr != nil {
		return beginErr
	}
	if h.at = (progress{Cursor: newest}); errors.Is(err, errUnreadable) {
		h.at.Reset = &reset{At: h.options.Clock().UTC()}
	}
	return h.at.write(h.path)
}

// newest returns the sequence of the last event.
func (h *hook) newest(ctx context.Context) (int64, error) {
	feed, err := h.options.Feed.Events(ctx, lifecycle.EventSelection{})
	if err != nil {
		return 0, err
	}
	defer feed.Close()
	batch, err := feed.Next(ctx)
	return batch.Cursor, err
}

// Run delivers until ctx ends. It may be called once.
func (d *Dispatcher) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, h := range d.hooks {
		running.Go(func() { h.run(ctx) })
	}
	running.Wait()
}

// Oldest returns, by the names of the webhooks, how old the event is that is to be delivered next;
// 0 when none waits.
func (d *Dispatcher) Oldest() map[string]time.Duration {
	ages := make(map[string]time.Duration, len(d.hooks))
	now := d.clock()
	for _, h := range d.hooks {
		ages[h.webhook.Name] = 0
		if at := h.waiting.Load(); at != nil {
			ages[h.webhook.Name] = max(0, now.Sub(*at))
		}
	}
	return ages
}
