// Package sse reads server-sent events as the HTML standard describes them.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// bufferSize is in bytes. It holds many usual events; a client may have a thousand readers.
const bufferSize = 32 << 10

// ErrTooLarge is a line or an event beyond the limit of its Reader.
var ErrTooLarge = errors.New("event stream")

// Reader reads the events of a stream. Lines end with LF, CRLF or CR; comments and fields other
// than data and id are skipped. It is not safe for concurrent use.
type Reader struct {
	in      *bufio.Reader
	limit   int
	long    []byte // the beginning of a line that did not fit into the buffer
	data    []byte // of the event being read
	id      []byte // the last one
	hasID   bool   // the event that was returned last has one
	started bool   // a line has been read: only the first one may have a byte order mark
	afterCR bool   // the last line ended with CR: an LF right after it belongs to it
}

// NewReader returns a Reader of a stream whose lines have at most limit bytes.
func NewReader(stream io.Reader, limit int) *Reader {
	return &Reader{in: bufio.NewReaderSize(stream, bufferSize), limit: limit}
}

// ID returns the id of the last event that had one, for the header Last-Event-ID; "" before that.
func (r *Reader) ID() string { return string(r.id) }

// HasID reports whether the event that Next returned last has an id of its own.
func (r *Reader) HasID() bool { return r.hasID }

// Next returns the data of the next event that has any: its data lines, joined by newlines. The
// slice is valid until the next call. It returns [io.EOF] when the stream ends between two events,
// and [io.ErrUnexpectedEOF] when it ends within one, which the standard discards.
func (r *Reader) Next() ([]byte, error) {
	r.data, r.hasID = r.data[:0], false
	var hasData, inside bool
	for {
		line, err := r.line()
		switch {
		case errors.Is(err, io.EOF) && inside:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case len(line) == 0 && hasData:
			return r.data, nil
		case len(line) == 0:
			inside, r.hasID = false, false
			continue
		case line[0] == ':': // a comment, often sent to keep the connection open
			continue
		}
		inside = true
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "data":
			if hasData {
				r.data = append(r.data, '\n')
			}
			r.data, hasData = append(r.data, value...), true
			if len(r.data) > r.limit {
				return nil, fmt.Errorf("%w: an event has more than %d bytes", ErrTooLarge, r.limit)
			}
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				r.id, r.hasID = append(r.id[:0], value...), true
			}
		}
	}
}

// line returns the next line without its end, valid until the next call.
func (r *Reader) line() ([]byte, error) {
	r.long = r.long[:0]
	for {
		if _, err := r.in.Peek(1); err != nil {
			if errors.Is(err, io.EOF) && len(r.long) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		buffered, _ := r.in.Peek(r.in.Buffered()) // cannot fail: the bytes are buffered
		if r.afterCR {
			// Only now is it known whether an LF follows the CR. To wait for it before the line was
			// returned would have delayed a whole event until the next one.
			r.afterCR = false
			if buffered[0] == '\n' {
				_, _ = r.in.Discard(1)
				continue
			}
		}
		part, ended := buffered, false
		if end := bytes.IndexByte(part, '\n'); end >= 0 {
			part, ended = part[:end], true
		}
		if end := bytes.IndexByte(part, '\r'); end >= 0 {
			part, ended, r.afterCR = part[:end], true, true
		}
		if len(r.long)+len(part) > r.limit {
			return nil, fmt.Errorf("%w: a line has more than %d bytes", ErrTooLarge, r.limit)
		}
		if !ended {
			r.long = append(r.long, part...)
			_, _ = r.in.Discard(len(part))
			continue
		}
		_, _ = r.in.Discard(len(part) + 1) // the bytes stay in the buffer until it is filled again
		if len(r.long) > 0 {
			r.long = append(r.long, part...)
			part = r.long
		}
		if !r.started {
			part = bytes.TrimPrefix(part, []byte("\ufeff"))
			r.started = true
		}
		return part, nil
	}
}
