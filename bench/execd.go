package main

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
)

const (
	tokenHeader = "X-EXECD-ACCESS-TOKEN"
	token       = "a-token-of-the-bench"
)

// execd is the address and the credential of a daemon: one that the bench started, or one in a
// sandbox.
type execd struct {
	url     string
	headers http.Header
	client  *http.Client
}

// startExecd starts the daemon as a user would start it, with its defaults, and the log in a file.
func startExecd(ctx context.Context, run *bench) (*process, execd, error) {
	dir, err := run.directory("execd")
	if err != nil {
		return nil, execd{}, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, execd{}, err
	}
	command := exec.Command(filepath.Join(run.bin, "execd"), "--host", host, "--port",
		strconv.Itoa(port), "--graceful-shutdown-timeout", "0s")
	command.Dir = dir
	command.Env = append(os.Environ(), "EXECD_ACCESS_TOKEN="+token,
		"EXECD_LOG_FILE="+filepath.Join(dir, "execd.log"), "TMPDIR="+dir)
	p, err := start(ctx, dir, joined(host, port), "/ping", command)
	if err != nil {
		return nil, execd{}, err
	}
	return p, execd{url: p.url, headers: http.Header{tokenHeader: {token}}, client: p.client}, nil
}

// call sends a request and returns the response when its status is 200.
func (d execd) call(ctx context.Context, method, path, contentType string,
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
	return send(d.client, request, http.StatusOK)
}

// send sends a request and returns the response when it has the wanted status, and what the service
// said otherwise.
func send(client *http.Client, request *http.Request, want int) (*http.Response, error) {
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

// stream is the event stream of a running command.
type stream struct {
	eventReader
	id       string
	response *http.Response
}

// run starts a command in the foreground.
func (d execd) run(ctx context.Context, command string) (*stream, error) {
	return d.post(ctx, "/command", map[string]any{"command": command})
}

// post starts what is answered with events.
func (d execd) post(ctx context.Context, path string, request any) (*stream, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	response, err := d.call(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return &stream{eventReader: newEventReader(response.Body),
		id: response.Header.Get("X-Command-ID"), response: response}, nil
}

// until reads on to the first event of the type. A stream that ends before is an error.
func (s *stream) until(kind string) (event, error) {
	for {
		e, err := s.next()
		if err != nil {
			return event{}, fmt.Errorf("before the event %s: %w", kind, err)
		}
		if e.kind == kind {
			return e, nil
		}
		if e.kind == eventError || e.kind == eventComplete {
			return event{}, fmt.Errorf("the command ended with the event %s instead of %s", e.kind,
				kind)
		}
	}
}

// finish reads to the end, so that the connection can be used again.
func (s *stream) finish() error {
	defer s.response.Body.Close()
	for {
		if _, err := s.next(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// abandon closes the stream without reading on.
func (s *stream) abandon() { s.response.Body.Close() }

// complete runs a command that must succeed to its end.
func (d execd) complete(ctx context.Context, command string) error {
	s, err := d.run(ctx, command)
	if err != nil {
		return err
	}
	if _, err := s.until(eventComplete); err != nil {
		s.abandon()
		return err
	}
	return s.finish()
}

// interrupt ends a command.
func (d execd) interrupt(ctx context.Context, id string) error {
	response, err := d.call(ctx, http.MethodDelete, "/command?id="+url.QueryEscape(id), "", nil)
	if err != nil {
		return err
	}
	return drain(response)
}

// drain reads a small answer to its end, so that the connection can be used again.
func drain(response *http.Response) error {
	defer response.Body.Close()
	_, err := io.Copy(io.Discard, response.Body)
	return err
}
