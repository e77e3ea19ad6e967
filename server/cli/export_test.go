package cli

import (
	"context"
	"io"
	"time"

	"sandbox.internal/gen/execd"
)

// MaxEventLine is maxEventLine.
const MaxEventLine = maxEventLine

// EventReader is eventReader.
type EventReader struct{ reader *eventReader }

// NewEventReader is newEventReader.
func NewEventReader(source io.Reader) EventReader { return EventReader{newEventReader(source)} }

// Next is eventReader.next.
func (r EventReader) Next() (id, data string, err error) {
	e, err := r.reader.next()
	return e.id, string(e.data), err
}

// OutputOf is outputOf.
func OutputOf(e execd.StreamEvent) []byte { return outputOf(e) }

// Duration is duration.
func Duration(d time.Duration) string { return duration(d) }

// Table prints two rows and a note as a report does.
func Table(out io.Writer, colour bool) {
	r := &report{out: out, colour: colour}
	r.note("a note\nof two lines\n")
	r.passed("create", 3*time.Millisecond, "done")
	r.failed("download", 12*time.Second)
}

// RunCommand is runCommand.
func RunCommand(ctx context.Context, daemon *execd.Client) (stdout string, err error) {
	output, err := runCommand(ctx, daemon, "true", func([]byte) {})
	return string(output), err
}

// Fetch is life.fetch.
func Fetch(ctx context.Context, daemon *execd.Client, byteRange *string, status int,
	want string) error {
	l := &life{daemon: daemon}
	_, err := l.fetch(ctx, byteRange, status, want)
	return err
}
