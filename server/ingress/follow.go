package ingress

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
)

const (
	// silence is how long the stream of events may be silent before it counts as lost. The service sends something every 5 s.
	silence = 45 * time.Second
	// firstPause and longestPause are the pauses between attempts to reconnect.
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	// longestEvent bounds an event, in bytes. A change of metadata sets and removes at most 1 MiB each, which JSON escapes can make six
	// times as long.
	longestEvent = 16 << 20
)

// follower keeps the table as the service's events say. It is used by one goroutine.
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
		heard, err := f.stream(ctx)
		f.metrics.connected.Set(0)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause = firstPause
		}
		f.metrics.reconnects.Inc()
		f.logger.Warn().Err(err).Dur("pause_ms", pause).Bool("complete", f.cursor != "").Msg("the stream of events is lost; routes stay as they are until it is back")
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
}

// errSilence is the cause of a stream that was given up.
var errSilence = fmt.Errorf("nothing was heard for %s", silence)

// stream follows one stream to its end. Heard tells that it brought an event.
func (f *follower) stream(ctx context.Context) (heard bool, err error) {
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
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, longestEvent)
	var id string
	for lines.Scan() {
		watchdog.Reset(silence)
		line := lines.Bytes()
		if text, ok := bytes.CutPrefix(line, []byte("id: ")); ok {
			id = string(text)
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		if err := f.take(ctx, id, data); err != nil {
			return heard, err
		}
		if !heard {
			heard = true
			f.metrics.connected.Set(1)
			f.logger.Info().Str("after", f.cursor).Msg("routes follow the events of the lifecycle service")
		}
	}
	return heard, errors.Join(context.Cause(ctx), lines.Err())
}

// take brings the table up to an event.
func (f *follower) take(ctx context.Context, id string, data []byte) error {
	f.metrics.events.Inc()
	var event gen.SandboxEvent
	if err := json.Unmarshal(data, &event); err != nil {
		return fmt.Errorf("event %s: %w", id, err)
	}
	// The list is read when the stream has begun, so that what changes from then on is in the stream.
	if f.cursor == "" || event.Type == "reset" {
		f.cursor = ""
		all, err := f.service.list(ctx)
		if err != nil {
			return err
		}
		f.table.replace(all)
		if len(all) > f.table.limit {
			f.logger.Error().Int("sandboxes", len(all)).Int("limit", f.table.limit).Msg("there are more sandboxes than the gateway may know; raise --max-sandboxes")
		}
	}
	f.cursor = id
	if event.SandboxID == nil {
		return nil
	}
	switch {
	case event.Type == string(lifecycle.EventForgotten):
		f.table.forget(*event.SandboxID)
	case event.Type == string(lifecycle.EventState) && event.To != nil:
		f.table.update(seen{id: *event.SandboxID, state: lifecycle.State(*event.To), since: event.Timestamp})
	}
	return nil
}
