package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/gen/execd"
	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/conform"
)

const daemonPort = 44772

// box is the inside of a sandbox, reached through its endpoint as clients do it.
type box struct {
	client  *execd.ClientWithResponses
	http    *http.Client
	conform *conform.Transport
}

// outcome is how a command ended.
type outcome struct {
	stdout, stderr string
	code           int // -1 when it has none
}

func (c *client) endpoint(t *testing.T, id string, port int) lifecycle.Endpoint {
	t.Helper()
	response, err := c.api.GetEndpointWithResponse(t.Context(), id, port, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON200 == nil {
		t.Fatalf("endpoint %d of %s: %s: %s", port, id, response.Status(), response.Body)
	}
	return *response.JSON200
}

// enter returns the inside of a sandbox. The answers of its execd are held to execd's contract.
func (c *client) enter(t *testing.T, id string) *box {
	t.Helper()
	return enterAt(t, c.endpoint(t, id, daemonPort))
}

func enterAt(t *testing.T, endpoint lifecycle.Endpoint) *box {
	t.Helper()
	document, err := execdContract()
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	b := &box{conform: conform.New(document, behind{base, endpoint}, t)}
	b.http = &http.Client{Transport: b.conform, Timeout: patience}
	// The contract knows its paths from the root; what is before them comes with the transport.
	b.client, err = execd.NewClientWithResponses("http://sandbox", execd.WithHTTPClient(b.http))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// behind sends requests to an endpoint, whatever host they name.
type behind struct {
	base     http.RoundTripper
	endpoint lifecycle.Endpoint
}

func (b behind) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	host, path, _ := strings.Cut(b.endpoint.Endpoint, "/")
	request.URL.Host, request.Host = host, host
	request.URL.Path = "/" + path + request.URL.Path
	for name, value := range b.endpoint.Headers {
		request.Header.Set(name, value)
	}
	return b.base.RoundTrip(request)
}

// run runs a command to its end.
func (b *box) run(t *testing.T, command string) outcome {
	t.Helper()
	response, err := b.client.RunCommand(t.Context(), execd.CommandRequest{Command: command})
	if err != nil {
		t.Fatalf("run %q: %v", command, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("run %q: %s", command, response.Status)
	}
	result := outcome{code: -1}
	events := bufio.NewScanner(response.Body)
	events.Buffer(nil, 1<<20)
	for events.Scan() {
		data, ok := bytes.CutPrefix(events.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if err := b.conform.CheckEvent("StreamEvent", data); err != nil {
			t.Error(err)
		}
		var event execd.StreamEvent
		if err := json.Unmarshal(data, &event); err != nil {
			t.Fatal(err)
		}
		switch event.Type {
		case execd.StreamEventTypeStdout:
			result.stdout += textOf(event)
		case execd.StreamEventTypeStderr:
			result.stderr += textOf(event)
		case execd.StreamEventTypeExecutionComplete, execd.StreamEventTypeError:
			if event.ExitCode != nil {
				result.code = *event.ExitCode
			}
			return result
		}
	}
	t.Fatalf("the stream of %q ended before the command did: %v", command, events.Err())
	return result
}

func textOf(event execd.StreamEvent) string {
	if event.Text == nil || *event.Text == "\n" || event.Partial != nil && *event.Partial {
		return value(event.Text)
	}
	return *event.Text + "\n"
}

// want runs a command that must succeed with that output.
func (b *box) want(t *testing.T, command, stdout string) {
	t.Helper()
	if got := b.run(t, command); got.code != 0 || got.stdout != stdout {
		t.Errorf("%q: exit code %d, stdout %q, stderr %q; want 0 and %q", command, got.code, got.stdout, got.stderr, stdout)
	}
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// strike runs a command that may take its daemon with it before that has answered.
func (b *box) strike(t *testing.T, command string) {
	t.Helper()
	background := true
	response, err := b.client.RunCommand(t.Context(), execd.CommandRequest{Command: command, Background: &background})
	if err != nil {
		return
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("%q in the background: %s", command, response.Status)
	}
}
