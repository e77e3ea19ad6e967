package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/clients/go/execd"
	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sse"
)

// DaemonPort is where execd listens in every sandbox.
const DaemonPort = 44772

// Box is the inside of a sandbox, reached through its endpoint as clients do it.
type Box struct {
	Client  *execd.ClientWithResponses
	HTTP    *http.Client
	conform *conform.Transport
}

// Outcome is how a command ended.
type Outcome struct {
	Stdout, Stderr string
	Code           int // -1 when it has none
	Reason         string
}

// Endpoint returns how to reach a port of the sandbox.
func (c *Client) Endpoint(t *testing.T, id string, port int) lifecycle.Endpoint {
	t.Helper()
	response, err := c.API.GetEndpointWithResponse(t.Context(), id, port, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON200 == nil {
		t.Fatalf("endpoint %d of %s: %s: %s", port, id, response.Status(), response.Body)
	}
	return *response.JSON200
}

// Enter returns the inside of a sandbox. The answers of its execd are held to execd's contract.
func (c *Client) Enter(t *testing.T, id string) *Box {
	t.Helper()
	return EnterAt(t, c.Endpoint(t, id, DaemonPort))
}

// EnterAt returns the inside of the sandbox whose execd is at that endpoint.
func EnterAt(t *testing.T, endpoint lifecycle.Endpoint) *Box {
	t.Helper()
	document, err := ExecdContract()
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	b := &Box{conform: conform.New(document, behind{base, endpoint}, t)}
	b.HTTP = &http.Client{Transport: b.conform, Timeout: wait.Patience()}
	// The contract has its paths from the root; what is before them comes with the transport.
	b.Client, err = execd.NewClientWithResponses("http://sandbox", execd.WithHTTPClient(b.HTTP))
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

// Run runs a command to its end.
func (b *Box) Run(t *testing.T, command string) Outcome {
	t.Helper()
	result, err := b.Try(t, command)
	if err != nil {
		t.Fatalf("run %q: %v", command, err)
	}
	return result
}

// Try runs a command whose daemon may end before it does.
func (b *Box) Try(t *testing.T, command string) (Outcome, error) {
	t.Helper()
	result := Outcome{Code: -1}
	response, err := b.Client.RunCommand(t.Context(), nil, execd.CommandRequest{Command: command})
	if err != nil {
		return result, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return result, errors.New(response.Status)
	}
	for events := sse.NewReader(response.Body, 1<<20); ; {
		data, err := events.Next()
		if err != nil {
			return result, fmt.Errorf("the stream ended before the command did: %w", err)
		}
		if err := b.conform.CheckEvent("StreamEvent", data); err != nil {
			t.Error(err)
		}
		var event execd.StreamEvent
		if err := json.Unmarshal(data, &event); err != nil {
			return result, err
		}
		switch event.Type {
		case execd.StreamEventTypeStdout:
			result.Stdout += textOf(event)
		case execd.StreamEventTypeStderr:
			result.Stderr += textOf(event)
		case execd.StreamEventTypeExecutionComplete, execd.StreamEventTypeError:
			result.Reason = Value(event.Reason)
			if event.ExitCode != nil {
				result.Code = *event.ExitCode
			}
			return result, nil
		}
	}
}

func textOf(event execd.StreamEvent) string {
	if event.Text == nil || *event.Text == "\n" || event.Partial != nil && *event.Partial {
		return Value(event.Text)
	}
	return *event.Text + "\n"
}

// Want runs a command that must succeed with that output.
func (b *Box) Want(t *testing.T, command, stdout string) {
	t.Helper()
	if got := b.Run(t, command); got.Code != 0 || got.Stdout != stdout {
		t.Errorf("%q: exit code %d, stdout %q, stderr %q; want 0 and %q", command, got.Code,
			got.Stdout, got.Stderr, stdout)
	}
}

// Value returns what a pointer leads to, or the zero value.
func Value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// RunFatal starts a command that may end its daemon before the response: the connection may be
// cut, and the service, if it forwards the request, may answer 502.
func (b *Box) RunFatal(t *testing.T, command string) {
	t.Helper()
	background := true
	response, err := b.Client.RunCommand(t.Context(), nil,
		execd.CommandRequest{Command: command, Background: &background})
	if err != nil {
		return
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusBadGateway {
		t.Errorf("%q in the background: %s", command, response.Status)
	}
}

// Upload sends a file, which must succeed.
func (b *Box) Upload(t *testing.T, path, content string) {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part := func(name, text string) {
		field, err := form.CreateFormField(name)
		if err == nil {
			_, err = field.Write([]byte(text))
		}
		if err != nil {
			t.Error(err)
		}
	}
	part("metadata", `{"path":"`+path+`"}`)
	part("file", content)
	if err := form.Close(); err != nil {
		t.Error(err)
	}
	response, err := b.Client.UploadFilesWithBodyWithResponse(t.Context(), nil,
		form.FormDataContentType(), &body)
	if err != nil || response.StatusCode() != http.StatusOK {
		t.Errorf("an upload: %v, %v", response, err)
	}
}
