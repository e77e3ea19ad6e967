package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sandbox.internal/wire/sse"
)

// The events that the bench reads (execd document, "Events").
const (
	eventInit     = "init"
	eventStdout   = "stdout"
	eventComplete = "execution_complete"
	eventError    = "error"
)

// event is one event of a command's stream, as far as the bench needs it.
type event struct {
	kind    string
	text    []byte // valid until the next event is read
	partial bool   // text is a fragment of a line: no newline follows it
}

// output is the bytes of the process that the event stands for: its line and, unless it is a
// fragment, the newline.
func (e event) output() (line []byte, newline bool) {
	if e.partial {
		return e.text, false
	}
	if len(e.text) == 1 && e.text[0] == '\n' { // how an empty line is written
		return nil, true
	}
	return e.text, true
}

// eventReader reads the events of a command. It shares the machine with the server that is
// measured, so it must cost little: the usual event is taken apart without a JSON parser, and
// whatever looks different goes through one.
type eventReader struct{ *sse.Reader }

// longestLine is in bytes.
const longestLine = 1 << 20

func newEventReader(body io.Reader) eventReader {
	return eventReader{sse.NewReader(body, longestLine)}
}

// next returns the next event of a command.
func (r eventReader) next() (event, error) {
	data, err := r.Next()
	if err != nil {
		return event{}, err
	}
	return parseEvent(data)
}

var (
	plainStart = []byte(`{"type":"stdout","timestamp":`)
	plainText  = []byte(`,"text":"`)
	plainEnd   = []byte(`"}`)
)

func parseEvent(data []byte) (event, error) {
	if text, ok := parsePlain(data); ok {
		return event{kind: eventStdout, text: text}, nil
	}
	var fields struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Raw     []byte `json:"raw"`
		Partial bool   `json:"partial"`
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return event{}, fmt.Errorf("event %q: %w", data, err)
	}
	e := event{kind: fields.Type, text: []byte(fields.Text), partial: fields.Partial}
	if fields.Raw != nil {
		e.text = fields.Raw
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
