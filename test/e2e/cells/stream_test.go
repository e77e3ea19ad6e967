package cells_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// event is one event of a cell's stream as it came.
type event struct {
	id   int64 // 0 when it has none
	data []byte

	Type    string
	Text    string
	Count   int  `json:"execution_count"`
	Time    *int `json:"execution_time"`
	Results map[string]json.RawMessage
	Error   *gen.StreamError
	Reason  string
	Partial bool
}

// output returns the text that the event stands for, as a client rebuilds it.
func (e event) output() string {
	switch {
	case e.Partial:
		return e.Text
	case e.Text == "\n":
		return "\n"
	}
	return e.Text + "\n"
}

func (e event) terminal() bool { return e.Type == "execution_complete" || e.Type == "error" }

// stream reads the events of one answer, and holds them to the contract: all but most of a long
// output.
type stream struct {
	t      testing.TB
	d      *daemon
	body   io.ReadCloser
	reader *bufio.Reader
	id     string // of the execution
	count  int
}

func (d *daemon) stream(t testing.TB, response *http.Response, err error) *stream {
	t.Helper()
	must(t, err)
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d: %s", response.StatusCode, text)
	}
	return &stream{t: t, d: d, body: response.Body, reader: bufio.NewReader(response.Body), id: response.Header.Get("X-Execution-ID")}
}

// next returns the next event that is no ping; io.EOF is the orderly end.
func (s *stream) next() (event, error) {
	s.t.Helper()
	var e event
	for {
		line, err := s.reader.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				s.t.Errorf("the stream ends inside of an event: %q", line)
			}
			return event{}, err
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		if id, ok := bytes.CutPrefix(line, []byte("id: ")); ok {
			e.id, err = strconv.ParseInt(string(id), 10, 64)
			must(s.t, err)
		}
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			e.data = data
		}
		if len(line) > 0 || e.data == nil {
			continue
		}
		must(s.t, json.Unmarshal(e.data, &e))
		if s.count++; s.count < 100 || s.count%100 == 0 || e.terminal() {
			if err := s.d.contract.CheckEvent("StreamEvent", e.data); err != nil {
				s.t.Error(err)
			}
		}
		if e.Type != "ping" {
			return e, nil
		}
		e = event{}
	}
}

// until returns the next event of a type; what comes before it is passed over, unless it is the
// end.
func (s *stream) until(kind string) event {
	s.t.Helper()
	for {
		e, err := s.next()
		must(s.t, err)
		if e.Type == kind {
			return e
		}
		if e.terminal() {
			s.t.Fatalf("the cell ended before an event %s: %s", kind, e.data)
		}
	}
}

// said is what a cell has said, from its first event to its last.
type said []event

// all reads to the end and checks the frame that every stream has: ids without gaps from first on,
// and one terminal event, the last.
func (s *stream) all(first int64) said {
	s.t.Helper()
	var events said
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(s.t, err)
		if want := first + int64(len(events)); e.id != want {
			s.t.Fatalf("event %s has id %d, want %d", e.data, e.id, want)
		}
		events = append(events, e)
	}
	for i, e := range events {
		if last := i == len(events)-1; e.terminal() != last {
			s.t.Fatalf("event %d of %d is %s: a terminal event comes once and last", i+1, len(events), e.data)
		}
	}
	if len(events) == 0 {
		s.t.Fatal("the stream has no events")
	}
	return events
}

func (s said) end() event { return s[len(s)-1] }

// text returns what the cell printed to a stream.
func (s said) text(kind string) string {
	var text strings.Builder
	for _, e := range s {
		if e.Type == kind {
			text.WriteString(e.output())
		}
	}
	return text.String()
}

// result returns the first content of a MIME type, nil when there is none.
func (s said) result(mime string) json.RawMessage {
	for _, e := range s {
		if content, ok := e.Results[mime]; ok && e.Type == "result" {
			return content
		}
	}
	return nil
}

// good fails the test unless the cell has ended well.
func (s said) good(t testing.TB) said {
	t.Helper()
	if end := s.end(); end.Type != "execution_complete" || end.Time == nil || end.Error != nil {
		t.Fatalf("the cell ended with %s; stdout %q, stderr %q", end.data, s.text("stdout"), s.text("stderr"))
	}
	return s
}
