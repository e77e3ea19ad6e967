package compat

import (
	"bytes"
	"encoding/json"
	"net/http"

	"sandbox.internal/openapi/serve/respond"
)

// The keys of a result whose value is plain text: the contract's, which is a MIME type, and that of
// OpenSandbox.
const (
	plainText = "text/plain"
	text      = "text"
)

// resultWriter adds text beside text/plain to the results in a stream of events. Events are written
// as a whole, so nothing is kept back from one flush to the next.
type resultWriter struct {
	http.ResponseWriter
	begun []byte // of a line
}

// Unwrap gives a [http.ResponseController] access to the wrapped writer.
func (w *resultWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *resultWriter) Write(p []byte) (int, error) {
	if w.Header().Get("Content-Type") != respond.MIMEEventStream {
		return w.ResponseWriter.Write(p)
	}
	var out []byte
	rest := p
	for {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if !whole {
			w.begun = append(w.begun, line...)
			break
		}
		if len(w.begun) > 0 {
			line, w.begun = append(w.begun, line...), nil
		}
		out = append(append(out, withText(line)...), '\n')
		rest = after
	}
	if len(out) > 0 {
		if _, err := w.ResponseWriter.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// withText returns a line of a stream with the text of its results, if it has any.
func withText(line []byte) []byte {
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	if !ok || !bytes.Contains(data, []byte(`"results":{`)) {
		return line
	}
	var event, results map[string]json.RawMessage
	if json.Unmarshal(data, &event) != nil || json.Unmarshal(event["results"], &results) != nil {
		return line
	}
	plain, ok := results[plainText]
	if _, there := results[text]; !ok || there {
		return line
	}
	results[text] = plain
	encoded, err := json.Marshal(results)
	if err != nil {
		return line
	}
	event["results"] = encoded
	if encoded, err = json.Marshal(event); err != nil {
		return line
	}
	return append([]byte("data: "), encoded...)
}
