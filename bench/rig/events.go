package rig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sandbox.internal/wire/sse"
)

// The events that the bench reads (execd document, "Events").
const (
	EventInit     = "init"
	EventStdout   = "stdout"
	EventComplete = "execution_complete"
	EventError    = "error"
)

// Event is one event of a command's stream, as far as the bench needs it.
type Event struct {
	Kind    string
	Text    []byte // valid until the next event is read
	partial bool   // text is a fragment of a line: no newline follows it
}

// Output is the bytes of the process that the event stands for: its line and, unless it is a
// fragment, the newline.
func (e Event) Output() (line []byte, newline bool) {
	if e.partial {
		return e.Text, false
	}
	if len(e.Text) == 1 && e.Text[0] == '\n' { // how an empty line is written
		return nil, true
	}
	return e.Text, true
}

// eventReader reads the events of a command. It shares the machine with the server that is
// measured, so it must cost little: the usual event is taken apart without a JSON parser, and
// whatever looks different goes through one.
type eventReader struct{ *sse.Reader }

// LongestLine is in bytes.
const LongestLine = 1 << 20

func newEventReader(body io.Reader) eventReader {
	return eventReader{sse.NewReader(body, LongestLine)}
}

// Read returns the next event of a command.
func (r eventReader) Read() (Event, error) {
	data, err := r.Next()
	if err != nil {
		return Event{}, err
	}
	return parseEvent(data)
}

var (
	plainStart = []byte(`{"type":"stdout","timestamp":`)
	plainText  = []byte(`,"text":"`)
	plainEnd   = []byte(`"}`)
)

func parseEvent(data []byte) (Event, error) {
	if text, ok := parsePlain(data); ok {
		return Event{Kind: EventStdout, Text: text}, nil
	}
	var fields struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Raw     []byte `json:"raw"`
		Partial bool   `json:"partial"`
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return Event{}, fmt.Errorf("event %q: %w", data, err)
	}
	e := Event{Kind: fields.Type, Text: []byte(fields.Text), partial: fields.Partial}
	if fields.Raw != nil {
		e.Text = fields.Raw
	}
	return e, nil
}

// parsePlain takes apart an event of one whole line of output without anything to be unescaped.
func parsePlain(data []byte) ([]byte, bool) {
	rest, ok := bytes.CutPrefix(data, plainStart)
	if !ok {
		return nil, false
	}
	for len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' {
		rest = rest[1:]
	}
	if rest, ok = bytes.CutPrefix(rest, plainText); !ok {
		return nil, false
	}
	if rest, ok = bytes.CutSuffix(rest, plainEnd); !ok {
		return nil, false
	}
	if bytes.IndexByte(rest, '"') >= 0 || bytes.IndexByte(rest, '\\') >= 0 {
		return nil, false
	}
	return rest, true
}
