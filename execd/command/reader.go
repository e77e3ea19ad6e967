package command

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// windows are the buffers through which readers see the file; a reader that has caught up holds none.
var windows = sync.Pool{New: func() any { return new([regularSegment]byte) }}

// cursor walks over the frames of a log.
type cursor struct {
	log    *Log
	pos    position // of the next frame
	bytes  []byte   // frames from pos on, as far as they are at hand
	window *[regularSegment]byte
}

// next returns the next frame, or false when the cursor has caught up with the log. The payload is valid until the next call.
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

// load gets at least one whole frame at hand, if the log has one: a frame never spans two segments, and the window holds the largest.
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
		return false, fmt.Errorf("read the command's log: %w", err)
	}
	c.bytes = buffer
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

// newReader returns a reader of the events after the one with that id. It fails when the log does not reach that far.
func newReader(l *Log, after int64) (*Reader, error) {
	end, _ := l.snapshot()
	if after < 0 || after > end.events {
		return nil, invalidf("event %d does not exist; the last one is %d", after, end.events)
	}
	start := l.mark(func(p position) bool { return p.events <= after })
	return &Reader{cursor: cursor{log: l, pos: start}, id: start.events, skip: after}, nil
}

// Next returns the next event without waiting. It returns false when the reader has caught up, and [io.EOF] after the terminal event.
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

func (f frame) output() bool { return f.kind == TypeStdout || f.kind == TypeStderr }

func (r *Reader) split() Event {
	r.id++
	r.left--
	event := Event{ID: r.id, Type: r.frame.kind, Time: r.frame.time, Partial: r.frame.partial, Text: r.rest}
	if r.frame.output() && !r.frame.partial {
		end := bytes.IndexByte(r.rest, '\n')
		event.Text, r.rest = r.rest[:end], r.rest[end+1:]
	}
	if r.frame.terminal() {
		_, event.Exit = r.cursor.log.snapshot()
		r.ended = true
	}
	return event
}

// Wait returns a channel that is closed as soon as there may be more to read; nil means that there is more at once.
func (r *Reader) Wait() <-chan struct{} {
	if r.left > 0 || r.ended {
		return nil
	}
	return r.cursor.log.wait(r.cursor.pos.offset)
}

// Close gives back what the reader holds. The reader must not be used afterwards.
func (r *Reader) Close() { r.cursor.release() }

// Lines is a part of a command's combined output, stdout and stderr in the order in which they arrived.
type Lines struct {
	// Last is the 0-based index of the last line that can be had; -1 when there is none.
	Last   int64
	log    *Log
	from   int64 // index of the first line
	stop   int64 // newlines after which the part ends
	all    bool  // the command has ended: a last line without a newline counts
	finish position
}

// newLines returns the lines after the 0-based index. While the command runs, a last line that has no newline yet is left out:
// it would be cut in two.
func newLines(l *Log, after int64) *Lines {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := &Lines{log: l, from: min(after, l.end.lines) + 1, stop: l.end.lines, all: l.exit != nil, finish: l.end, Last: l.end.lines - 1}
	if lines.all && l.open {
		lines.Last++
	}
	return lines
}

// WriteTo implements [io.WriterTo]: it writes the lines, bytes as the command wrote them.
func (p *Lines) WriteTo(w io.Writer) (int64, error) {
	if p.from > p.Last {
		return 0, nil
	}
	c := cursor{log: p.log, pos: p.log.mark(func(m position) bool { return m.lines < p.from })}
	defer c.release()
	var written int64
	for c.pos.offset < p.finish.offset {
		line := c.pos.lines
		f, ok, err := c.next()
		if err != nil || !ok {
			return written, err
		}
		if !f.output() {
			continue
		}
		n, err := w.Write(p.cut(f, line))
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// cut returns what of a frame that begins in the given line belongs to the part.
func (p *Lines) cut(f frame, line int64) []byte {
	payload := f.payload
	for ; line < p.from && len(payload) > 0; line++ {
		end := bytes.IndexByte(payload, '\n')
		if end < 0 {
			return nil
		}
		payload = payload[end+1:]
	}
	if !p.all && line >= p.stop {
		return nil
	}
	return payload
}
