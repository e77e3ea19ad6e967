// Package respond writes the bodies of responses that may be long: event streams, downloads, and
// whatever else has to give up on a client that takes nothing.
package respond

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// DefaultWriteTimeout is how long a client may take for 256 KiB, or for the rest of
	// what is written, before it counts as stuck and is dropped.
	DefaultWriteTimeout = 30 * time.Second

	// PingInterval is how long a stream may be silent before it shows that it is alive. Clients
	// of this field give up a read after 10 s.
	PingInterval = 5 * time.Second

	// firstBuffer is the capacity with which a stream's buffer begins, in bytes.
	firstBuffer = 4 << 10

	// maxKeptBuffer bounds the buffers that are kept after a burst, in bytes.
	maxKeptBuffer = 64 << 10
)

// streamBuffers are what events collect in. A stream has one from its first event to
// the flush only: there may be a thousand streams that wait.
var streamBuffers = sync.Pool{New: func() any {
	buffer := make([]byte, 0, firstBuffer)
	return &buffer
}}

// EventStreamOptions configures an [EventStream].
type EventStreamOptions struct {
	// WriteTimeout limits each 256 KiB of a Flush; 0 means [DefaultWriteTimeout].
	WriteTimeout time.Duration
}

// EventStream writes server-sent events. Events collect in a buffer until Flush, so
// that a burst costs one write, not one per event. It belongs to one goroutine, the
// request's: nothing else writes, and nothing outlives the request.
//
// A client that does not read makes only Flush wait, and only for the write timeout.
type EventStream struct {
	ctx     context.Context
	body    boundedWriter
	buffer  *[]byte // nil when nothing is buffered
	started bool
	err     error
}

// NewEventStream prepares a stream on w. The response is not sent, and an error can still be
// returned as usual, until the first Flush. ctx is the request's.
func NewEventStream(ctx context.Context, w http.ResponseWriter,
	options EventStreamOptions) *EventStream {
	return &EventStream{ctx: ctx, body: newBoundedWriter(w, options.WriteTimeout)}
}

// Event adds an event with an id, from which a client resumes (Last-Event-ID).
func (s *EventStream) Event(id int64, data []byte) {
	buffer := append(s.borrow(), "id: "...)
	buffer = strconv.AppendInt(buffer, id, 10)
	*s.buffer = append(buffer, '\n')
	s.Data(data)
}

// Append adds an event with an id whose data render appends to what it is given. The
// data must be one line; it is not checked, and nothing is copied.
func (s *EventStream) Append(id int64, render func([]byte) []byte) {
	buffer := append(s.borrow(), "id: "...)
	buffer = strconv.AppendInt(buffer, id, 10)
	buffer = append(buffer, "\ndata: "...)
	*s.buffer = append(render(buffer), "\n\n"...)
}

// Data adds an event without an id. data is usually one line of JSON; several lines
// become several data fields, as the format asks for.
func (s *EventStream) Data(data []byte) {
	for bytes.IndexByte(data, '\n') >= 0 || bytes.IndexByte(data, '\r') >= 0 {
		end := bytes.IndexAny(data, "\r\n")
		s.line(data[:end])
		if bytes.HasPrefix(data[end:], []byte("\r\n")) {
			end++
		}
		data = data[end+1:]
	}
	s.line(data)
	*s.buffer = append(*s.buffer, '\n')
}

// Ping adds a comment, which clients skip: it shows that the stream is alive where the schema of
// the events has no event for that.
func (s *EventStream) Ping() {
	buffer := append(s.borrow(), ": ping\n\n"...)
	*s.buffer = buffer
}

func (s *EventStream) line(data []byte) {
	buffer := append(s.borrow(), "data: "...)
	buffer = append(buffer, data...)
	*s.buffer = append(buffer, '\n')
}

// borrow returns the buffer as it is.
func (s *EventStream) borrow() []byte {
	if s.buffer == nil {
		s.buffer = streamBuffers.Get().(*[]byte)
	}
	return *s.buffer
}

// releaseBuffer releases the buffer.
func (s *EventStream) releaseBuffer() {
	if cap(*s.buffer) <= maxKeptBuffer {
		*s.buffer = (*s.buffer)[:0]
		streamBuffers.Put(s.buffer)
	}
	s.buffer = nil
}

// Buffered is the number of bytes that wait for Flush.
func (s *EventStream) Buffered() int {
	if s.buffer == nil {
		return 0
	}
	return len(*s.buffer)
}

// Flush sends what is buffered, and the response's header before anything else. It
// returns an error once the client has gone, is stuck for longer than the write
// timeout, or the request has ended; the stream is over then.
func (s *EventStream) Flush() error {
	if s.err == nil {
		s.err = s.flush()
	}
	return s.err
}

func (s *EventStream) flush() error {
	if s.ctx.Err() != nil {
		return fmt.Errorf("event stream: %w", context.Cause(s.ctx))
	}
	if !s.started {
		s.started = true
		StartEvents(s.body.w)
	}
	if s.buffer != nil {
		_, err := s.body.Write(*s.buffer)
		s.releaseBuffer()
		if err != nil {
			return fmt.Errorf("event stream: write: %w", err)
		}
	}
	if err := s.body.controller.Flush(); err != nil {
		return fmt.Errorf("event stream: flush: %w", err)
	}
	return nil
}

// StartEvents writes the header of an event stream.
func StartEvents(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", MIMEEventStream)
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
}

// MIMEEventStream is the media type of event streams.
const MIMEEventStream = "text/event-stream"

// Continue returns a stream whose header StartEvents has written.
func Continue(ctx context.Context, w http.ResponseWriter) *EventStream {
	out := NewEventStream(ctx, w, EventStreamOptions{})
	out.started = true
	return out
}
