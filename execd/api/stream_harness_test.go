package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
	"sandbox.internal/openapi/conform"
)

// event is one event of a command's stream as it came.
type event struct {
	id   int64 // 0 when it has none
	data []byte

	Type          string
	Text          string
	Timestamp     int64
	ExecutionTime *int64          `json:"execution_time"`
	ExitCode      json.RawMessage `json:"exit_code"` // null and absent differ
	Count         int             `json:"execution_count"`
	Results       map[string]json.RawMessage
	Error         *gen.StreamError
	Partial       bool
	Raw           []byte
}

func (e event) output() bool { return e.Type == "stdout" || e.Type == "stderr" }

func (e event) terminal() bool { return e.Type == "execution_complete" || e.Type == "error" }

// bytes returns the output that the event stands for, as a client rebuilds it.
func (e event) bytes() []byte {
	text := []byte(e.Text)
	switch {
	case e.Raw != nil:
		text = e.Raw
	case e.Text == "\n":
		text = nil
	}
	if e.Partial {
		return text
	}
	return append(text, '\n')
}

// stream reads the events of one answer, and holds each to the contract.
type stream struct {
	t        *testing.T
	response *http.Response
	reader   *bufio.Reader
	contract *conform.Transport
	// sparse checks the schema of every hundredth event of output only: validating takes far longer
	// than reading.
	sparse bool
	count  int
}

func (d *daemon) stream(t *testing.T, response *http.Response, err error) *stream {
	t.Helper()
	must(t, err)
	t.Cleanup(func() { response.Body.Close() })
	if media := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || media != "text/event-stream" {
		data, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d, type %q: %s", response.StatusCode, media, data)
	}
	return &stream{t: t, response: response, reader: bufio.NewReader(response.Body), contract: d.contract}
}

// run starts a command in the foreground.
func (d *daemon) run(t *testing.T, request gen.CommandRequest) *stream {
	t.Helper()
	response, err := d.client.RunCommand(t.Context(), nil, request)
	return d.stream(t, response, err)
}

// resume follows a command from after an event; 0 is its beginning.
func (d *daemon) resume(ctx context.Context, t *testing.T, id string, after int64) *stream {
	t.Helper()
	params := &gen.StreamCommandParams{}
	if after > 0 {
		params.LastEventID = new(strconv.FormatInt(after, 10))
	}
	response, err := d.client.StreamCommand(ctx, id, params)
	return d.stream(t, response, err)
}

// next returns the next event; io.EOF is the orderly end.
func (s *stream) next() (event, error) {
	s.t.Helper()
	var e event
	for {
		line, err := s.reader.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && (len(line) > 0 || e.data != nil) {
				s.t.Errorf("the stream ends inside of an event: %q", line)
			}
			return event{}, err
		}
		line = line[:len(line)-1]
		switch {
		case len(line) == 0:
			s.decode(&e)
			return e, nil
		case bytes.HasPrefix(line, []byte("id: ")) && e.id == 0 && e.data == nil:
			e.id, err = strconv.ParseInt(string(line[4:]), 10, 64)
			must(s.t, err)
		case bytes.HasPrefix(line, []byte("data: ")) && e.data == nil:
			e.data = line[6:]
		default:
			s.t.Fatalf("unexpected line in a stream: %q", line)
		}
	}
}

func (s *stream) decode(e *event) {
	s.t.Helper()
	s.count++
	must(s.t, json.Unmarshal(e.data, e))
	if s.sparse && e.output() && s.count%100 != 0 {
		return
	}
	if err := s.contract.CheckEvent("StreamEvent", e.data); err != nil {
		s.t.Error(err)
	}
}

// must returns the next event, which must exist.
func (s *stream) must() event {
	s.t.Helper()
	e, err := s.next()
	must(s.t, err)
	return e
}

// until returns the next event of a type; what comes before it is passed over.
func (s *stream) until(kind string) event {
	s.t.Helper()
	for {
		if e := s.must(); e.Type == kind {
			return e
		}
	}
}

// all reads to the end and checks the frame that every whole stream has: ids without gaps from
// first on, and one terminal event, which is the last. Pings are left out.
func (s *stream) all(first int64) []event {
	s.t.Helper()
	var events []event
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(s.t, err)
		if e.Type == "ping" {
			continue
		}
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

// joined returns the output of one stream as the command wrote it.
func joined(events []event, kind string) string {
	var out strings.Builder
	for _, e := range events {
		if e.Type == kind {
			out.Write(e.bytes())
		}
	}
	return out.String()
}
