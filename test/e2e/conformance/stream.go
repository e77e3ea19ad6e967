package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
)

// StreamEvent is one event of a stream.
type StreamEvent struct {
	ID int64
	lifecycle.SandboxEvent
}

// Stream follows events. It reads in a goroutine of its own, so that a test can give up waiting.
type Stream struct {
	t      *testing.T
	events chan StreamEvent // closed at the stream's end
	err    error            // why it ended, nil for a whole end; valid once events is closed
	close  func()
}

// StreamEvents opens a stream, which must be answered with 200.
func (c *Client) StreamEvents(t *testing.T, path string, headers ...string) *Stream {
	t.Helper()
	response, cancel := c.openEndless(t, path, headers...)
	if response.StatusCode != http.StatusOK {
		content, _ := io.ReadAll(response.Body)
		t.Fatalf("GET %s: %s %s", path, response.Status, content)
	}
	s := &Stream{t: t, events: make(chan StreamEvent, 10_000)}
	done := make(chan struct{})
	s.close = func() { cancel(); <-done }
	t.Cleanup(s.close)
	go func() {
		defer close(done)
		defer close(s.events)
		defer response.Body.Close()
		s.err = s.read(response.Body, c.HTTP.Transport.(*conform.Transport))
	}()
	return s
}

// Open makes a request whose response, its body included, takes the patience of a test at most. It
// is for a test that reads the body itself. The end of the test closes it.
func (c *Client) Open(t *testing.T, path string,
	headers ...string) (*http.Response, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience())
	return c.open(ctx, t, cancel, path, headers), cancel
}

// openEndless makes a request whose response must begin within the patience of a test, and whose
// body may last as long as the test. It is for a body that is read in a goroutine of its own, for
// which the test waits.
func (c *Client) openEndless(t *testing.T, path string,
	headers ...string) (*http.Response, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer time.AfterFunc(wait.Patience(), cancel).Stop()
	return c.open(ctx, t, cancel, path, headers), cancel
}

func (c *Client) open(ctx context.Context, t *testing.T, cancel func(), path string,
	headers []string) *http.Response {
	t.Helper()
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.authorise(ctx, request) // sets a header and cannot fail
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := (&http.Client{Transport: c.HTTP.Transport}).Do(request)
	if err != nil {
		t.Fatalf("no response within %v: %v", wait.Patience(), err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func (s *Stream) read(body io.Reader, contract *conform.Transport) error {
	lines := bufio.NewReader(body)
	var event StreamEvent
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return nil
		}
		if err != nil {
			return err
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "id":
			if event.ID, err = strconv.ParseInt(value, 10, 64); err != nil {
				return err
			}
		case "data":
			if err := contract.CheckEvent("SandboxEvent", []byte(value)); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(value), &event.SandboxEvent); err != nil {
				return err
			}
		case "":
			s.events <- event
			event = StreamEvent{}
		}
	}
}

// Next returns the next event, and whether there is one.
func (s *Stream) Next() (event StreamEvent, open bool) {
	s.t.Helper()
	select {
	case event, open = <-s.events:
	case <-time.After(wait.Patience()):
		s.t.Fatalf("no event comes within %v", wait.Patience())
	}
	return event, open
}

// Until returns the events up to the first one that is the last wanted, pings left out.
func (s *Stream) Until(last func(StreamEvent) bool) []StreamEvent {
	s.t.Helper()
	var seen []StreamEvent
	timeout := time.After(wait.Patience())
	for {
		select {
		case event, open := <-s.events:
			if !open {
				s.t.Fatalf("the stream ended (%v) after %s", s.err, Describe(seen))
			}
			if event.Type == "ping" {
				continue
			}
			if seen = append(seen, event); last(event) {
				return seen
			}
		case <-timeout:
			s.t.Fatalf("the awaited event did not come within %v; so far: %s", wait.Patience(),
				Describe(seen))
		}
	}
}

// Rest returns the events up to the end of the stream, which must come by itself.
func (s *Stream) Rest() []StreamEvent {
	s.t.Helper()
	var seen []StreamEvent
	timeout := time.After(wait.Patience())
	for {
		select {
		case event, open := <-s.events:
			if !open {
				return seen
			}
			if event.Type != "ping" {
				seen = append(seen, event)
			}
		case <-timeout:
			s.t.Fatalf("the stream did not end within %v; so far: %s", wait.Patience(), Describe(seen))
		}
	}
}

// State is for until.
func State(id, name string) func(StreamEvent) bool {
	return func(e StreamEvent) bool {
		return e.Type == "state" && Value(e.SandboxID) == id &&
			Value(e.To) == name
	}
}

// Describe names events by their content.
func Describe(events []StreamEvent) string {
	var words []string
	for _, e := range events {
		switch e.Type {
		case "state":
			words = append(words, Value(e.To))
		case "stage":
			words = append(words, Value(e.Stage))
		default:
			words = append(words, e.Type)
		}
	}
	return strings.Join(words, " ")
}
