package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"sandbox.internal/bench/measure"
)

const (
	tokenHeader = "X-EXECD-ACCESS-TOKEN"
	token       = "a-token-of-the-bench"
)

// Execd is the address and the credential of a daemon: one that the bench started, or one in a
// sandbox.
type Execd struct {
	url     string
	headers http.Header
	client  *http.Client
}

// StartExecd starts the daemon as a user would start it, with its defaults, and the log in a file.
func StartExecd(ctx context.Context, run *measure.Run) (*Process, Execd, error) {
	dir, err := run.Directory("execd")
	if err != nil {
		return nil, Execd{}, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, Execd{}, err
	}
	command := exec.Command(filepath.Join(run.Bin, "execd"), "--host", host, "--port",
		strconv.Itoa(port), "--graceful-shutdown-timeout", "0s")
	command.Dir = dir
	command.Env = append(os.Environ(), "EXECD_ACCESS_TOKEN="+token,
		"EXECD_LOG_FILE="+filepath.Join(dir, "execd.log"), "TMPDIR="+dir)
	p, err := Start(ctx, dir, Joined(host, port), "/ping", command)
	if err != nil {
		return nil, Execd{}, err
	}
	return p, Execd{url: p.URL, headers: http.Header{tokenHeader: {token}}, client: p.Client}, nil
}

// Call sends a request and returns the response when its status is 200.
func (d Execd) Call(ctx context.Context, method, path, contentType string,
	body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, d.url+path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range d.headers {
		request.Header[name] = values
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	return Send(d.client, request, http.StatusOK)
}

// Send sends a request and returns the response when it has the wanted status, and what the service
// said otherwise.
func Send(client *http.Client, request *http.Request, want int) (*http.Response, error) {
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != want {
		defer response.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		return nil, fmt.Errorf("%s %s: %s: %s", request.Method, request.URL.Path, response.Status,
			bytes.TrimSpace(said))
	}
	return response, nil
}

// Stream is the event stream of a running command.
type Stream struct {
	eventReader
	ID       string
	response *http.Response
}

// Run starts a command in the foreground.
func (d Execd) Run(ctx context.Context, command string) (*Stream, error) {
	return d.Post(ctx, "/command", map[string]any{"command": command})
}

// Post starts what is answered with events.
func (d Execd) Post(ctx context.Context, path string, request any) (*Stream, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	response, err := d.Call(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return &Stream{eventReader: newEventReader(response.Body),
		ID: response.Header.Get("X-Command-ID"), response: response}, nil
}

// Until reads on to the first event of the type. A stream that ends before is an error.
func (s *Stream) Until(kind string) (Event, error) {
	for {
		e, err := s.Read()
		if err != nil {
			return Event{}, fmt.Errorf("before the event %s: %w", kind, err)
		}
		if e.Kind == kind {
			return e, nil
		}
		if e.Kind == EventError || e.Kind == EventComplete {
			return Event{}, fmt.Errorf("the command ended with the event %s instead of %s", e.Kind,
				kind)
		}
	}
}

// Finish reads to the end, so that the connection can be used again.
func (s *Stream) Finish() error {
	defer s.response.Body.Close()
	for {
		if _, err := s.Read(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Abandon closes the stream without reading on.
func (s *Stream) Abandon() { s.response.Body.Close() }

// Complete runs a command that must succeed to its end.
func (d Execd) Complete(ctx context.Context, command string) error {
	s, err := d.Run(ctx, command)
	if err != nil {
		return err
	}
	if _, err := s.Until(EventComplete); err != nil {
		s.Abandon()
		return err
	}
	return s.Finish()
}

// Interrupt ends a command.
func (d Execd) Interrupt(ctx context.Context, id string) error {
	response, err := d.Call(ctx, http.MethodDelete, "/command?id="+url.QueryEscape(id), "", nil)
	if err != nil {
		return err
	}
	return Drain(response)
}

// Drain reads a small answer to its end, so that the connection can be used again.
func Drain(response *http.Response) error {
	defer response.Body.Close()
	_, err := io.Copy(io.Discard, response.Body)
	return err
}
