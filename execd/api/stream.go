package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"sandbox.internal/execd/internal/eventlog"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// flushSize is how many bytes of events gather before they are sent although more are at hand.
const flushSize = 32 << 10

// logStream is the answer with the events of a log.
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
	after, err := serve.LastEventID(lastEventID)
	if err != nil {
		return nil, err
	}
	reader, err := log.Reader(after)
	if errors.Is(err, eventlog.ErrNoEvent) {
		return nil, serve.Invalid("header Last-Event-ID: %v", err)
	}
	return reader, err
}

// serve answers. The stream goes on after the handler, of which it needs nothing.
func (s logStream) serve(w http.ResponseWriter) error {
	f := follower{reader: s.reader, detail: s.detail, linger: s.linger, greet: s.greet, initOnly: s.initOnly}
	return serve.StreamEvents(s.ctx, w, f.write)
}

// follower writes the events of a log. One goroutine, the request's, reads the log and writes; what
// is at hand goes out in one flush. While it waits it holds nothing but what it takes to go on.
type follower struct {
	reader   *eventlog.Reader
	detail   detailFunc
	linger   time.Duration
	greet    bool
	initOnly bool
}

func (s *follower) write(ctx context.Context, out *respond.EventStream) error {
	defer s.reader.Close()
	ping := time.NewTimer(respond.PingInterval)
	defer ping.Stop()
	for {
		ended, err := s.catchUp(out)
		if err != nil {
			return err
		}
		if out.Flush() != nil {
			return nil // the client has left; its command goes on, and so can its stream with Last-Event-ID
		}
		if ended {
			keepOpen(ctx, s.linger)
			return nil
		}
		ping.Reset(respond.PingInterval)
		select {
		case <-s.reader.Wait():
		case now := <-ping.C:
			out.Data(appendPing(nil, now.UnixMilli()))
		case <-ctx.Done():
			return nil
		}
	}
}

// catchUp adds the events that are at hand, or as many as are worth a flush, and reports whether
// the last one of the stream is among them.
func (s *follower) catchUp(out *respond.EventStream) (ended bool, err error) {
	for out.Buffered() < flushSize {
		event, ok, err := s.reader.Next()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil || !ok {
			return false, err
		}
		out.Append(event.ID, func(b []byte) []byte { return appendEvent(b, event, s.detail) })
		if s.greet && event.Type == eventlog.TypeInit {
			if s.initOnly {
				return true, nil
			}
			out.Data(appendPing(nil, event.Time))
		}
	}
	return false, nil
}

// keepOpen keeps the connection open for a while once the daemon is stopping: what was sent last
// has to arrive before the sandbox goes.
func keepOpen(ctx context.Context, linger time.Duration) {
	select {
	case <-listen.Draining(ctx):
	default:
		return
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
