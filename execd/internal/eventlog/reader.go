package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// windows are the buffers through which readers see the file; a reader that has caught up holds
// none.
var windows = sync.Pool{New: func() any { return new([regularSegment]byte) }}

// cursor walks over the frames of a log.
type cursor struct {
	log    *Log
	pos    position // of the next frame
	bytes  []byte   // frames from pos on, as far as they are at hand
	window *[regularSegment]byte
}

// next returns the next frame, or false when the cursor has caught up with the log. The payload is
// valid until the next call.
func (c *cursor) next() (frame, bool, error) {
	f, size, complete := c.peek()
	if !complete {
		more, err := c.load()
		if err != nil || !more {
			return frame{}, false, err
		}
		f, size, _ = c.peek()
	}
	f.payload = c.bytes[headerSize : headerSize+size]
	c.bytes = c.bytes[headerSize+size:]
	c.pos.offset += int64(headerSize + size)
	c.pos.events += f.events
	c.pos.lines += f.lines
	return f, true, nil
}

func (c *cursor) peek() (f frame, size int, complete bool) {
	if len(c.bytes) < headerSize {
		return frame{}, 0, false
	}
	f, size = parseHeader(c.bytes)
	return f, size, len(c.bytes) >= headerSize+size
}

// load gets at least one whole frame at hand, if the log has one: a frame never spans two segments.
func (c *cursor) load() (bool, error) {
	c.bytes = nil
	c.log.mu.Lock()
	if c.pos.offset >= c.log.end.offset {
		c.log.mu.Unlock()
		c.release()
		return false, nil
	}
	data, file, offset, size, err := c.log.spool.at(c.pos.offset)
	c.log.mu.Unlock()
	if err != nil {
		return false, err
	}
	if file == nil {
		c.bytes = data
		return true, nil
	}
	if c.window == nil {
		c.window = windows.Get().(*[regularSegment]byte)
	}
	buffer := c.window[:min(size, int64(len(c.window)))]
	if _, err := file.ReadAt(buffer, offset); err != nil {
		return false, fmt.Errorf("read the log: %w", err)
	}
	c.bytes = buffer
	if _, length, complete := c.peek(); !complete { // a result larger than the window
		c.bytes = make([]byte, headerSize+length)
		if _, err := file.ReadAt(c.bytes, offset); err != nil {
			return false, fmt.Errorf("read the log: %w", err)
		}
	}
	return true, nil
}

func (c *cursor) release() {
	if c.window != nil {
		windows.Put(c.window)
		c.window = nil
	}
}

// Reader follows a log event by event. It is for one goroutine.
type Reader struct {
	cursor cursor
	frame  frame
	rest   []byte // of the frame's payload
	left   int64  // events of the frame not yet returned
	id     int64  // of the last event returned
	skip   int64  // events up to this id are passed over
	ended  bool
}

// ErrNoEvent: the log has no event with that id yet.
var ErrNoEvent = errors.New("no such event")

// Reader returns a reader of the events after the one with that id; 0 means all. It returns
// ErrNoEvent for an id that does not exist yet.
func (l *Log) Reader(after int64) (*Reader, error) {
	l.mu.Lock()
	last := l.end.events
	l.mu.Unlock()
	if after < 0 || after > last {
		return nil, fmt.Errorf("%w: event %d does not exist; the last one is %d", ErrNoEvent, after, last)
	}
	start := l.mark(func(p position) bool { return p.events <= after })
	return &Reader{cursor: cursor{log: l, pos: start}, id: start.events, skip: after}, nil
}

// Tail returns a reader of the events that come from now on.
func (l *Log) Tail() *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Reader{cursor: cursor{log: l, pos: l.end}, id: l.end.events, skip: l.end.events, ended: l.ended}
}

// Next returns the next event without waiting. It returns false when the reader has caught up, and
// [io.EOF] after the terminal event.
func (r *Reader) Next() (Event, bool, error) {
	for {
		if r.ended {
			return Event{}, false, io.EOF
		}
		if r.left == 0 {
			f, ok, err := r.cursor.next()
			if err != nil || !ok {
				return Event{}, false, err
			}
			r.frame, r.rest, r.left = f, f.payload, f.events
			if r.id+r.left <= r.skip {
				r.id, r.left = r.id+r.left, 0
				r.ended = f.terminal()
				continue
			}
		}
		if event := r.split(); event.ID > r.skip {
			return event, true, nil
		}
	}
}

func (f frame) terminal() bool { return f.kind == TypeComplete || f.kind == TypeError }

func (f frame) isOutput() bool {
	return f.isText() || f.kind == TypeResult || f.kind == TypeDisplay || f.kind == TypeCount
}

// isText reports whether the frame holds bytes of a stream.
func (f frame) isText() bool { return f.kind == TypeStdout || f.kind == TypeStderr }

func (r *Reader) split() Event {
	r.id++
	r.left--
	event := Event{ID: r.id, Type: r.frame.kind, Time: r.frame.time, Partial: r.frame.partial, Text: r.rest}
	if r.frame.isText() && !r.frame.partial {
		end := bytes.IndexByte(r.rest, '\n')
		event.Text, r.rest = r.rest[:end], r.rest[end+1:]
	}
	r.ended = r.frame.terminal()
	return event
}

// Wait returns a channel that is closed as soon as there may be more to read, which may be before
// the call.
func (r *Reader) Wait() <-chan struct{} {
	if r.left > 0 || r.ended {
		return closed
	}
	return r.cursor.log.wait(r.cursor.pos.offset)
}

// Close gives back what the reader holds. The reader must not be used afterwards.
func (r *Reader) Close() { r.cursor.release() }
