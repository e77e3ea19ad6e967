package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"sandbox.internal/execd/command"
	"sandbox.internal/openapi/serve"
)

const (
	// pingInterval is how long a stream may be silent before it says that it is alive.
	pingInterval = 10 * time.Second
	// flushSize is how many bytes of events gather before they are sent although more are at hand.
	flushSize = 32 << 10
)

// commandStream is the answer with a command's events. One goroutine, the handler's, reads the log and writes; what is at hand
// goes out in one flush.
type commandStream struct {
	ctx      context.Context
	id       string
	reader   *command.Reader
	linger   time.Duration
	greet    bool // a ping follows the init event, so that a client sees at once that events get through
	initOnly bool // a background command: the stream ends after init
}

// VisitRunCommandResponse implements the generated interface.
func (s commandStream) VisitRunCommandResponse(w http.ResponseWriter) error {
	w.Header().Set("X-Command-ID", s.id)
	return s.serve(w)
}

// VisitStreamCommandResponse implements the generated interface.
func (s commandStream) VisitStreamCommandResponse(w http.ResponseWriter) error { return s.serve(w) }

func (s commandStream) serve(w http.ResponseWriter) error {
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
			line = appendEvent(line[:0], event)
			out.Event(event.ID, line)
			if s.greet && event.Type == command.TypeInit {
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
func (s commandStream) end(out *serve.EventStream) error {
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
