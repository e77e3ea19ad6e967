package api_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	gen "sandbox.internal/clients/go/execd"
)

// source is something whose events can be read again.
type source struct {
	path  string // of its stream
	lines string // every event as it was streamed first, pings left out
	count int
}

// numbered renders events as they were streamed.
func numbered(events []event) string {
	var out strings.Builder
	for _, e := range events {
		fmt.Fprintf(&out, "%d %s\n", e.id, e.data)
	}
	return out.String()
}

// sources are a command and a cell that have ended, with lines, an empty line and a fragment.
func sources(t *testing.T, d *daemon) map[string]source {
	t.Helper()
	command := d.run(t, gen.CommandRequest{Command: `echo one; echo; printf 'a\377b\n'; printf end; exit 3`})
	commandEvents := command.all(1)
	response, err := d.client.RunCode(t.Context(), nil, gen.CodeRequest{Code: "print('one'); print(); print('end', end=''); 1/0", Language: new("python")})
	cell := d.stream(t, response, err)
	cellEvents := cell.all(1)
	return map[string]source{
		"command": {"/command/" + command.response.Header.Get("X-Command-ID") + "/stream", numbered(commandEvents), len(commandEvents)},
		"cell":    {"/code/executions/" + cell.response.Header.Get("X-Execution-ID") + "/stream", numbered(cellEvents), len(cellEvents)},
	}
}

// TestEveryEventIsWhereToGoOn asks for what follows each event of a stream, for commands and cells
// alike, and for what there is not.
func TestEveryEventIsWhereToGoOn(t *testing.T) {
	t.Parallel()
	d, another := start(t), start(t)
	for name, from := range sources(t, d) {
		t.Run(name, func(t *testing.T) {
			for after := range from.count + 1 {
				response := d.streamAfter(t, from.path, fmt.Sprint(after))
				s := d.stream(t, response, nil)
				var events []event
				for {
					e, err := s.next()
					if errors.Is(err, io.EOF) {
						break
					}
					must(t, err)
					events = append(events, e)
				}
				want := strings.Join(strings.SplitAfter(from.lines, "\n")[after:], "")
				if got := numbered(events); got != want {
					t.Errorf("after event %d came\n%swant\n%s", after, got, want)
				}
			}
			last := fmt.Sprint(from.count)
			for _, bad := range []string{"-1", "1.5", "0x1", "one", "1 2", "+ 1", fmt.Sprint(from.count + 1), "9223372036854775807", "9223372036854775808", "１"} {
				status, text := said(t, d.streamAfter(t, from.path, bad))
				if status != http.StatusBadRequest || !strings.Contains(text, "header Last-Event-ID") || !strings.Contains(text, "INVALID_REQUEST_BODY") {
					t.Errorf("after %q: %d %s", bad, status, text)
				}
			}
			if _, text := said(t, d.streamAfter(t, from.path, fmt.Sprint(from.count+1))); !strings.Contains(text, "the last one is "+last) {
				t.Errorf("after an event beyond the end: %s", text)
			}
			// The life of another process: nothing is taken for what it is not.
			status, text := said(t, another.streamAfter(t, from.path, "1"))
			if id := strings.Split(from.path, "/"); status != http.StatusNotFound || !strings.Contains(text, `"NOT_FOUND"`) || !strings.Contains(text, id[len(id)-2]) {
				t.Errorf("of another daemon: %d %s", status, text)
			}
		})
	}
}

func (d *daemon) streamAfter(t *testing.T, path, after string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+path, nil)
	must(t, err)
	request.Header.Set("Last-Event-ID", after)
	response, err := d.http.Do(request)
	must(t, err)
	return response
}

func said(t *testing.T, response *http.Response) (int, string) {
	t.Helper()
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(bytes.ReplaceAll(text, []byte(`\"`), []byte(`"`)))
}

// TestLogsOfAForegroundCommand are as those of a background command.
func TestLogsOfAForegroundCommand(t *testing.T) {
	t.Parallel()
	d := start(t)
	s := d.run(t, gen.CommandRequest{Command: "echo one; echo; printf three"})
	s.all(1)
	id := s.response.Header.Get("X-Command-ID")
	for _, test := range []struct {
		cursor *int64
		want   string
	}{{nil, "one\n\nthree"}, {new(int64(0)), "\nthree"}, {new(int64(2)), ""}} {
		if text, next := d.logs(t, id, test.cursor); text != test.want || next != 2 {
			t.Errorf("got %q and %d, want %q and 2", text, next, test.want)
		}
	}
}
