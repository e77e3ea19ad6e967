package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/execd/eventlog"
	"sandbox.internal/openapi/serve"
)

const (
	// pingInterval is how long a stream may be silent before it says that it is alive.
	pingInterval = 10 * time.Second
	// flushSize is how many bytes of events gather before they are sent although more are at hand.
	flushSize = 32 << 10
)

// logStream is the answer with the events of a log. One goroutine, the handler's, reads the log and writes; what is at hand goes out
// in one flush.
type logStream struct {
	ctx      context.Context
	reader   *eventlog.Reader
	detail   detailFunc
	linger   time.Duration
	greet    bool // a ping follows the init event, so that a client sees at once that events get through
	initOnly bool // a background command: the stream ends after init
}

// resume returns a reader of what follows the event that a client names in Last-Event-ID.
func resume(log *eventlog.Log, lastEventID *string) (*eventlog.Reader, error) {
	id, after := value(lastEventID), int64(0)
	if id != "" {
		var err error
		if after, err = strconv.ParseInt(id, 10, 64); err != nil {
			return nil, serve.Invalid("header Last-Event-ID: %q is not the id of an event", id)
		}
	}
	reader, err := log.Reader(after)
	if errors.Is(err, eventlog.ErrNoEvent) {
		return nil, serve.Invalid("header Last-Event-ID: %v", err)
	}
	return reader, err
}

func (s logStream) serve(w http.ResponseWriter) error {
	defer s.reader.Close()
	out := serve.NewEventStream(s.ctx, w, serve.EventStreamOptions{})
	ping := time.NewTimer(pingInterval)
	defer ping.Stop()
	var line []byte
	for {
		event, ok, err := s.reader.Next()
		switch {
		case errors.Is(err, io.EOF):
			return s.end(out)
		case err != nil:
			return err
		case ok:
			line = appendEvent(line[:0], event, s.detail)
			out.Event(event.ID, line)
			if s.greet && event.Type == eventlog.TypeInit {
				if s.initOnly {
					return s.end(out)
				}
				out.Data(appendPing(line[:0], event.Time))
			}
			if out.Buffered() < flushSize {
				continue
			}
		}
		if err := out.Flush(); err != nil {
			return nil // the client has left; its command goes on, and so can its stream with Last-Event-ID
		}
		if ok {
			continue
		}
		more := s.reader.Wait()
		if more == nil {
			continue
		}
		ping.Reset(pingInterval)
		select {
		case <-more:
		case now := <-ping.C:
			out.Data(appendPing(line[:0], now.UnixMilli()))
		case <-s.ctx.Done():
			return nil
		}
	}
}

// end sends what is left. Once the daemon is stopping it keeps the connection open for a while: what was sent last has to arrive
// before the sandbox goes.
func (s logStream) end(out *serve.EventStream) error {
	if out.Flush() != nil {
		return nil
	}
	select {
	case <-serve.Draining(s.ctx):
	default:
		return nil
	}
	timer := time.NewTimer(s.linger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
	return nil
}
