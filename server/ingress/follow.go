package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/wire/sse"
)

const (
	// silence is how long the stream of events may bring nothing before it counts as lost. The
	// service sends a ping every 5 s.
	silence = 45 * time.Second
	// firstPause and longestPause are the pauses between attempts to reconnect.
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	// longestEvent bounds an event, in bytes. A change of metadata sets and removes at most 1 MiB
	// each, which JSON escapes can make six times as long.
	longestEvent = 16 << 20
	// clockSlack is how long the first event may have been on its way.
	clockSlack = time.Second
	// eventReset is the type of an event that only streams have: what was asked for is forgotten.
	eventReset = "reset"
)

// follower applies the service's events to the table. It is used by one goroutine.
type follower struct {
	service *service
	table   *table
	metrics *metrics
	logger  zerolog.Logger
	// cursor is the id of the last event that is in the table; empty while the list has to be read.
	cursor string
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		received, err := f.stream(ctx)
		f.metrics.connected.Set(0)
		if ctx.Err() != nil {
			return
		}
		if received {
			pause = firstPause
		}
		f.metrics.reconnects.Inc()
		f.logger.Warn().
			Err(err).
			Dur("pause_ms", pause).
			Bool("complete", f.cursor != "").
			Msg("stream of events lost; routes do not change until it is back")
		clock.Sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, longestPause)
	}
}

// errSilence is the cancellation cause of a stream that brought nothing for too long.
var errSilence = fmt.Errorf("no event received for %s", silence)

// stream follows one stream to its end and reports whether it brought an event.
func (f *follower) stream(ctx context.Context) (received bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilence) })
	defer watchdog.Stop()
	params := &gen.StreamEventsParams{}
	if f.cursor != "" {
		params.LastEventID = &f.cursor
	}
	response, err := f.service.client.StreamEvents(ctx, params)
	if err != nil {
		return false, errors.Join(context.Cause(ctx), err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false, fmt.Errorf("events: %s", response.Status)
	}
	body := &notifyingReader{response.Body, func() { watchdog.Reset(silence) }}
	for events := sse.NewReader(body, longestEvent); ; {
		data, err := events.Next()
		if err != nil {
			return received, errors.Join(context.Cause(ctx), err)
		}
		if err := f.apply(ctx, events.ID(), data); err != nil {
			return received, err
		}
		if !received {
			received = true
			f.metrics.connected.Set(1)
			f.logger.Info().
				Str("after", f.cursor).
				Msg("routes follow the events of the lifecycle service")
		}
	}
}

// notifyingReader calls received whenever bytes have arrived, of comments too.
type notifyingReader struct {
	io.Reader
	received func()
}

// Read implements io.Reader.
func (n *notifyingReader) Read(p []byte) (int, error) {
	count, err := n.Reader.Read(p)
	if count > 0 {
		n.received()
	}
	return count, err
}

// apply applies an event to the table.
func (f *follower) apply(ctx context.Context, id string, data []byte) error {
	f.metrics.events.Inc()
	var event gen.SandboxEvent
	if err := json.Unmarshal(data, &event); err != nil {
		return fmt.Errorf("event %s: %w", id, err)
	}
	// The list is read when the stream has begun, so that what changes from then on is in the
	// stream.
	if f.cursor == "" || event.Type == eventReset {
		f.cursor = ""
		began := time.Now()
		all, err := f.service.list(ctx)
		if err != nil {
			return err
		}
		// By the service's clock, which the times of the list are from.
		f.table.replace(all, event.Timestamp, event.Timestamp.Add(time.Since(began)+clockSlack))
		if len(all) > f.table.limit {
			f.logger.Error().
				Int("sandboxes", len(all)).
				Int("limit", f.table.limit).
				Msg("there are more sandboxes than the ingress may hold; raise --max-sandboxes")
		}
	}
	f.cursor = id
	if event.SandboxID == nil {
		return nil
	}
	switch {
	case event.Type == string(lifecycle.EventForgotten):
		f.table.remove(*event.SandboxID)
	case event.Type == string(lifecycle.EventProgress) && event.Reason != nil && lifecycle.Reason(*event.Reason).IsOnDisk():
		f.table.moved(*event.SandboxID)
	case event.Type == string(lifecycle.EventState) && event.To != nil:
		reason := ""
		if event.Reason != nil {
			reason = *event.Reason
		}
		state := lifecycle.State(*event.To)
		f.table.update(
			observation{
				id:     *event.SandboxID,
				state:  state,
				asleep: mayWake(state, reason),
				since:  event.Timestamp,
			},
		)
	}
	return nil
}
