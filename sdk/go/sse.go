package sandbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// message is one server-sent event.
type message struct {
	id    string // the last id that the stream gave, for Last-Event-ID
	hasID bool   // the event itself has one
	data  []byte // the data lines, joined by newlines
}

// eventReader reads server-sent events as the HTML standard describes them: lines end
// with LF, CRLF or CR, data may span lines, and comments and fields without a use here
// are skipped.
type eventReader struct {
	source  *bufio.Reader
	line    []byte
	started bool
	afterCR bool   // the last line ended with CR: an LF right after it belongs to it
	id      string // the last one
	limit   int    // of a line, in bytes
}

func newEventReader(source io.Reader, limit int) *eventReader {
	return &eventReader{source: bufio.NewReaderSize(source, 32<<10), limit: limit}
}

// next returns the next event that has data. It returns [io.EOF] when the stream ends
// between events, and [io.ErrUnexpectedEOF] when it breaks off within one: such a rest
// is no event.
func (r *eventReader) next() (message, error) {
	var e message
	var hasData, inside bool
	for {
		line, err := r.readLine()
		if errors.Is(err, io.EOF) && (inside || len(line) > 0) {
			return message{}, io.ErrUnexpectedEOF
		}
		if err != nil {
			return message{}, err
		}
		if len(line) == 0 {
			if hasData {
				e.id = r.id
				return e, nil
			}
			e, inside = message{}, false
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		if len(field) == 0 {
			continue // a comment, often sent to keep the connection alive
		}
		inside = true
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if hasData {
				e.data = append(e.data, '\n')
			}
			e.data, hasData = append(e.data, value...), true
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				r.id, e.hasID = string(value), true
			}
		}
	}
}

// readLine returns a line without its end; it is valid until the next call. At the
// end of the stream it returns what there was of an unfinished line, with io.EOF.
func (r *eventReader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	for {
		b, err := r.source.ReadByte()
		if err != nil {
			return r.line, err
		}
		if r.afterCR {
			// Only now is it known whether an LF follows. Looking ahead instead would
			// hold back a whole event until the next one arrives.
			r.afterCR = false
			if b == '\n' {
				continue
			}
		}
		if b == '\n' || b == '\r' {
			r.afterCR = b == '\r'
			return r.withoutMark(), nil
		}
		if len(r.line) == r.limit {
			return nil, fmt.Errorf("event stream: a line is longer than %d bytes", r.limit)
		}
		r.line = append(r.line, b)
	}
}

// withoutMark drops a byte order mark from the first line of the stream.
func (r *eventReader) withoutMark() []byte {
	line := r.line
	if !r.started {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	r.started = true
	return line
}
