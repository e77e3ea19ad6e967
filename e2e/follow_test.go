package e2e_test

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

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/conform"
)

// told is one event of a stream.
type told struct {
	id int64
	lifecycle.SandboxEvent
}

// stream follows events. It reads in a goroutine of its own, so that a test can give up waiting.
type stream struct {
	t      *testing.T
	events chan told // closed at the stream's end
	err    error     // why it ended, nil for a whole end; valid once events is closed
	close  func()
}

// streamEvents opens a stream, which must be answered with 200.
func (c *client) streamEvents(t *testing.T, path string, headers ...string) *stream {
	t.Helper()
	response, cancel := c.open(t, path, headers...)
	if response.StatusCode != http.StatusOK {
		content, _ := io.ReadAll(response.Body)
		t.Fatalf("GET %s: %s %s", path, response.Status, content)
	}
	s := &stream{t: t, events: make(chan told, 10_000)}
	done := make(chan struct{})
	s.close = func() { cancel(); <-done }
	t.Cleanup(s.close)
	go func() {
		defer close(done)
		defer close(s.events)
		defer response.Body.Close()
		s.err = s.read(response.Body, c.http.Transport.(*conform.Transport))
	}()
	return s
}

// open makes a request whose answer may take as long as it takes; the test's end closes it.
func (c *client) open(t *testing.T, path string, headers ...string) (*http.Response, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.authorise(ctx, request) // sets a header and cannot fail
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := (&http.Client{Transport: c.http.Transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response, cancel
}

func (s *stream) read(body io.Reader, contract *conform.Transport) error {
	lines := bufio.NewReader(body)
	var event told
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
			if event.id, err = strconv.ParseInt(value, 10, 64); err != nil {
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
			event = told{}
		}
	}
}

// next returns the next event, and whether there is one.
func (s *stream) next() (event told, open bool) {
	s.t.Helper()
	select {
	case event, open = <-s.events:
	case <-time.After(patience):
		s.t.Fatalf("nothing comes within %v", patience)
	}
	return event, open
}

// until returns the events up to the first one that is the last wanted, pings left out.
func (s *stream) until(last func(told) bool) []told {
	s.t.Helper()
	var seen []told
	timeout := time.After(patience)
	for {
		select {
		case event, open := <-s.events:
			if !open {
				s.t.Fatalf("the stream ended (%v) after %s", s.err, describe(seen))
			}
			if event.Type == "ping" {
				continue
			}
			if seen = append(seen, event); last(event) {
				return seen
			}
		case <-timeout:
			s.t.Fatalf("what is waited for did not come within %v; so far: %s", patience, describe(seen))
		}
	}
}

// rest returns the events up to the end of the stream, which must come by itself.
func (s *stream) rest() []told {
	s.t.Helper()
	var seen []told
	timeout := time.After(patience)
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
			s.t.Fatalf("the stream did not end within %v; so far: %s", patience, describe(seen))
		}
	}
}

// state is for until.
func state(id, name string) func(told) bool {
	return func(e told) bool { return e.Type == "state" && value(e.SandboxID) == id && value(e.To) == name }
}

// describe names events by what they tell.
func describe(events []told) string {
	var words []string
	for _, e := range events {
		switch e.Type {
		case "state":
			words = append(words, value(e.To))
		case "stage":
			words = append(words, value(e.Stage))
		default:
			words = append(words, e.Type)
		}
	}
	return strings.Join(words, " ")
}
