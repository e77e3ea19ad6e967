package host

import (
	"context"
	"io"
	"math"
	"slices"
	"sync"

	"sandbox.internal/server/lifecycle"
)

// feedPage and feedBytes bound what a feed reads at once: so many events, and none once they have
// so many bytes. An event may have more than a megabyte, because metadata and policies may.
const feedPage, feedBytes = 256, 256 << 10

// notifier notifies feeds. It carries no events: feeds read them from the store, at their own pace,
// so that no writer waits for a reader.
type notifier struct {
	mu    sync.Mutex
	feeds map[*feed]struct{}
}

// notify notifies the feeds that select one of the events, which are durable already.
func (b *notifier) notify(events []lifecycle.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f := range b.feeds {
		if slices.ContainsFunc(events, f.selects) {
			select {
			case f.notified <- struct{}{}:
			default: // it has a notification that it has not read yet
			}
		}
	}
}

// feed implements lifecycle.EventFeed.
type feed struct {
	host     *Host
	query    lifecycle.EventQuery // After is the cursor
	notified chan struct{}        // holds one
	begun    bool
	reset    bool // the first batch has to say that the client's events are unknown here
	behind   bool // there may be more to read without waiting
	ended    bool // the last event of the sandbox was delivered
}

// Events implements lifecycle.Backend.
func (h *Host) Events(
	ctx context.Context, selection lifecycle.EventSelection,
) (lifecycle.EventFeed, error) {
	if selection.SandboxID != "" {
		if _, err := h.registry.get(selection.SandboxID); err != nil {
			return nil, err
		}
	}
	f := &feed{host: h, notified: make(chan struct{}, 1), behind: true}
	f.query = lifecycle.EventQuery{
		SandboxID: selection.SandboxID,
		Owner:     selection.Owner,
		Limit:     feedPage,
		Bytes:     feedBytes,
	}
	// From here on no event is missed: the first read finds the earlier ones, the later ones notify
	// the feed.
	h.notifier.mu.Lock()
	h.notifier.feeds[f] = struct{}{}
	h.notifier.mu.Unlock()

	bounds, err := h.options.Store.Events(ctx, lifecycle.EventQuery{After: math.MaxInt64})
	if err != nil {
		f.Close()
		return nil, err
	}
	switch after := selection.After; {
	case after == nil && selection.SandboxID == "", after != nil && *after > bounds.Newest:
		f.query.After, f.reset = bounds.Newest, after != nil
	case after == nil, *after <= 0:
		f.query.After = bounds.Oldest - 1
	default:
		f.query.After = *after
	}
	return f, nil
}

func (f *feed) selects(event lifecycle.Event) bool {
	return (f.query.SandboxID == "" || f.query.SandboxID == event.SandboxID) &&
		(f.query.Owner == nil || *f.query.Owner == event.Owner)
}

// Close implements lifecycle.EventFeed.
func (f *feed) Close() {
	f.host.notifier.mu.Lock()
	defer f.host.notifier.mu.Unlock()
	delete(f.host.notifier.feeds, f)
}

// Next implements lifecycle.EventFeed.
func (f *feed) Next(ctx context.Context) (lifecycle.EventBatch, error) {
	for {
		if f.ended {
			return lifecycle.EventBatch{}, io.EOF
		}
		if !f.behind {
			select {
			case <-f.notified:
			case <-ctx.Done():
				return lifecycle.EventBatch{}, ctx.Err()
			case <-f.host.ctx.Done():
				return lifecycle.EventBatch{}, lifecycle.Stopping()
			}
		}
		batch, err := f.read(ctx)
		if err != nil {
			return lifecycle.EventBatch{}, err
		}
		if !f.begun || batch.Reset || len(batch.Events) > 0 {
			f.begun = true
			return batch, nil
		}
	}
}

// read returns what the store has behind the cursor, and moves the cursor.
func (f *feed) read(ctx context.Context) (lifecycle.EventBatch, error) {
	f.behind = true // until a read has found nothing more
	if f.reset {
		f.reset = false
		return lifecycle.EventBatch{Cursor: f.query.After, Reset: true}, nil
	}
	page, err := f.host.options.Store.Events(ctx, f.query)
	if err != nil {
		return lifecycle.EventBatch{}, err
	}
	if f.query.After+1 < page.Oldest {
		// The next events are forgotten: the client was away for too long, or reads too slowly.
		f.query.After = page.Oldest - 1
		if f.query.SandboxID != "" {
			_, gone := f.host.registry.get(f.query.SandboxID)
			f.ended = gone != nil // its last event may be among the forgotten ones
		}
		return lifecycle.EventBatch{Cursor: f.query.After, Reset: true}, nil
	}
	// The events up to the newest that are not in the page belong to other sandboxes or owners.
	f.query.After = max(f.query.After, page.Newest)
	if f.behind = page.More; f.behind {
		f.query.After = page.Events[len(page.Events)-1].Sequence
	}
	if n := len(page.Events); n > 0 && f.query.SandboxID != "" {
		f.ended = page.Events[n-1].Type == lifecycle.EventForgotten
	}
	return lifecycle.EventBatch{Events: page.Events, Cursor: f.query.After}, nil
}
