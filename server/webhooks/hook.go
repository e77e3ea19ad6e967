package webhooks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/lifecycle"
)

const (
	// The pause after a failed try doubles with each from firstPause to longestPause. Half of it is
	// random, so that webhooks of one receiver do not try at the same moment.
	firstPause   = time.Second
	longestPause = 5 * time.Minute
	// longestRequested bounds the pause that a receiver asks for with Retry-After.
	longestRequested = time.Hour
)

// typeReset is the type of what reports that events are lost, as in the feeds of the API.
const typeReset lifecycle.EventType = "reset"

// hook delivers to one receiver. Only its own goroutine uses it, but for waiting.
type hook struct {
	options Options
	webhook Webhook
	path    string // of the file with the progress
	client  *http.Client
	logger  zerolog.Logger
	at      progress
	// waiting is when the event happened that is delivered next; nil when there is none.
	waiting atomic.Pointer[time.Time]

	failures int  // tries that have failed since the last success
	failing  bool // and the log says so
	unsaved  bool // the file has an older progress, and the log says so
}

func newHook(o Options, w Webhook) (*hook, error) {
	target, err := url.Parse(w.URL)
	if err != nil {
		return nil, errors.New("the URL cannot be read") // err has the URL, which may hold a secret
	}
	return &hook{
		options: o, webhook: w, path: filepath.Join(o.Directory, fileOf(w)), client: newClient(w, o.Timeout),
		logger: o.Logger.With().Str("webhook", w.Name).Str("host", target.Host).Logger(),
	}, nil
}

func (h *hook) file() string { return filepath.Base(h.path) }

// run delivers until ctx ends or the receiver is gone.
func (h *hook) run(ctx context.Context) {
	defer h.client.CloseIdleConnections()
	for {
		err := h.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errGone) {
			h.logger.Error().Msg("the receiver of a webhook answered 410 Gone: no deliveries until the service is restarted")
			return
		}
		if !h.failing {
			h.failing = true
			h.logger.Warn().Err(err).Msg("cannot deliver events to a webhook; retrying")
		}
		h.failures++
		if !h.options.Sleep(ctx, pause(h.failures, err)) {
			return
		}
	}
}

// pause returns how long to wait after so many failed tries.
func pause(failures int, err error) time.Duration {
	longest := longestPause
	if n := failures - 1; n < 10 { // 2^10 seconds are more than the longest pause
		longest = min(longest, firstPause<<n)
	}
	chosen := longest/2 + rand.N(longest/2+1)
	var refused *refusal
	if errors.As(err, &refused) {
		chosen = max(chosen, min(refused.retryAfter, longestRequested))
	}
	return chosen
}

// follow delivers what follows the cursor, until that fails. No events are held between failures:
// the next call reads them again, and finds out when they are no longer kept.
func (h *hook) follow(ctx context.Context) error {
	if h.at.Reset != nil {
		if err := h.deliverReset(ctx); err != nil {
			return err
		}
	}
	feed, err := h.options.Feed.Events(ctx, lifecycle.EventSelection{After: &h.at.Cursor})
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer feed.Close()
	for {
		batch, err := feed.Next(ctx)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if err := h.take(ctx, batch); err != nil {
			return err
		}
	}
}

// take delivers a batch.
func (h *hook) take(ctx context.Context, batch lifecycle.EventBatch) error {
	if cursor, lost := lostBefore(h.at.Cursor, batch); lost {
		h.logger.Warn().Int64("after", h.at.Cursor).Int64("until", cursor).
			Msg("events that were not delivered to a webhook are no longer kept")
		h.at = progress{Cursor: cursor, Reset: &reset{After: h.at.Cursor, At: h.options.Clock().UTC()}}
		h.save()
		if err := h.deliverReset(ctx); err != nil {
			return err
		}
	}
	for _, event := range batch.Events {
		if !h.selects(event.Type) {
			continue
		}
		if err := h.deliver(ctx, fmt.Sprintf("evt_%d_%d", event.Sequence, event.Time.UnixMilli()), event); err != nil {
			return err
		}
		h.at.Cursor = event.Sequence
		h.save()
	}
	if batch.Cursor > h.at.Cursor {
		h.at.Cursor = batch.Cursor
		h.save()
	}
	return nil
}

// lostBefore reports whether events behind the cursor are missing, and up to which. A feed reports
// that by itself, but not to who asks for what follows 0: that means everything that is kept.
func lostBefore(cursor int64, batch lifecycle.EventBatch) (until int64, lost bool) {
	switch {
	case batch.Reset:
		return batch.Cursor, true
	case cursor != 0:
		return 0, false
	case len(batch.Events) > 0:
		return batch.Events[0].Sequence - 1, batch.Events[0].Sequence > 1
	}
	return batch.Cursor, batch.Cursor > 0
}

func (h *hook) selects(kind lifecycle.EventType) bool {
	return len(h.webhook.Events) == 0 || slices.Contains(h.webhook.Events, kind)
}

// deliverReset reports that events are lost. It is sent whatever types the webhook selects.
func (h *hook) deliverReset(ctx context.Context) error {
	id := fmt.Sprintf("reset_%d_%d", h.at.Reset.After, h.at.Reset.At.UnixMilli())
	if err := h.deliver(ctx, id, lifecycle.Event{Type: typeReset, Time: h.at.Reset.At}); err != nil {
		return err
	}
	h.at.Reset = nil
	h.save()
	return nil
}

// deliver tries once.
func (h *hook) deliver(ctx context.Context, id string, event lifecycle.Event) error {
	h.waiting.Store(&event.Time)
	body, err := h.options.Body(event)
	if err != nil {
		return fmt.Errorf("encode event %d: %w", event.Sequence, err)
	}
	if err := h.send(ctx, id, body); err != nil {
		if ctx.Err() == nil {
			h.options.Observer.WebhookTried(h.webhook.Name, false)
		}
		return err
	}
	h.options.Observer.WebhookTried(h.webhook.Name, true)
	h.waiting.Store(nil)
	h.failures = 0
	if h.failing {
		h.failing = false
		h.logger.Info().Msg("events are delivered to a webhook again")
	}
	return nil
}

// save writes the progress. The receiver need not wait for a disk that is full: what was delivered
// since is delivered again if the service ends before it can be written.
func (h *hook) save() {
	err := h.at.write(h.path)
	switch {
	case err != nil && !h.unsaved:
		h.logger.Error().Err(err).Msg("cannot write the cursor of a webhook: after a restart events may be delivered again")
	case err == nil && h.unsaved:
		h.logger.Info().Msg("the cursor of a webhook is written again")
	}
	h.unsaved = err != nil
}
