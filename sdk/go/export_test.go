package sandbox

import "io"

// EventReader is eventReader.
type EventReader struct{ reader *eventReader }

// NewEventReader is newEventReader.
func NewEventReader(source io.Reader) EventReader {
	return EventReader{newEventReader(source, defaultMaxAnswer)}
}

// Next is eventReader.next.
func (r EventReader) Next() (id, data string, err error) {
	e, err := r.reader.next()
	return e.id, string(e.data), err
}

// Limit bounds a line, in bytes.
func (r EventReader) Limit(n int) { r.reader.limit = n }
