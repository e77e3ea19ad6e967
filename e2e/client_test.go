package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
)

// client speaks to a service with one key.
type client struct {
	url  string
	key  string
	http *http.Client
	api  *lifecycle.ClientWithResponses
}

func (c *client) authorise(_ context.Context, request *http.Request) error {
	if c.key != "" {
		request.Header.Set(keyHeader, c.key)
	}
	return nil
}

// as returns a client of the same service with another key.
func (c *client) as(t *testing.T, key string) *client {
	t.Helper()
	other := &client{url: c.url, key: key, http: c.http}
	var err error
	other.api, err = lifecycle.NewClientWithResponses(c.url, lifecycle.WithHTTPClient(c.http), lifecycle.WithRequestEditorFn(other.authorise))
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// answer is a response whose body was read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// send makes a request that the typed client would not make. Headers are pairs of name and value.
func (c *client) send(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	got, err := c.try(method, path, body, headers...)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return got
}

// try is send for a service that may be killed meanwhile.
func (c *client) try(method, path, body string, headers ...string) (answer, error) {
	request, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	_ = c.authorise(context.Background(), request) // sets a header and cannot fail
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(content)}, err
}

// wantProblem checks an error: the decided body and nothing else, and a message that holds all of the words.
func wantProblem(t *testing.T, got answer, status int, code string, words ...string) {
	t.Helper()
	var body map[string]string
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Errorf("the body of an error is an object of strings: %v; got %s", err, got)
		return
	}
	if got.status != status || body["code"] != code {
		t.Errorf("got %s, want %d %s", got, status, code)
	}
	if len(body) != 3 || body["detail"] == "" || body["detail"] != body["message"] {
		t.Errorf("the body %s is not {code, message, detail} with two equal texts", got.body)
	}
	for _, word := range words {
		if !strings.Contains(body["message"], word) {
			t.Errorf("message %q does not say %q", body["message"], word)
		}
	}
	if kind := got.header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("Content-Type is %q", kind)
	}
}

// request asks for a small sandbox.
func request(image string, entrypoint ...string) lifecycle.CreateSandboxRequest {
	memory := "256Mi"
	return lifecycle.CreateSandboxRequest{
		Image:          lifecycle.Image{URI: image},
		Timeout:        600,
		ResourceLimits: lifecycle.ResourceLimits{Memory: &memory},
		Entrypoint:     entrypoint,
	}
}

// idle asks for a sandbox that does nothing by itself.
func idle() lifecycle.CreateSandboxRequest { return request(busyboxImage, "sleep", "1000") }

// create has a sandbox accepted and returns its id.
func (c *client) create(t *testing.T, r lifecycle.CreateSandboxRequest) string {
	t.Helper()
	response, err := c.api.CreateSandboxWithResponse(t.Context(), nil, r)
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON202 == nil {
		t.Fatalf("create: %s: %s", response.Status(), response.Body)
	}
	return response.JSON202.ID
}

// running returns the id of a new sandbox that is Running.
func (c *client) running(t *testing.T, r lifecycle.CreateSandboxRequest) string {
	t.Helper()
	id := c.create(t, r)
	c.await(t, id, "Running")
	return id
}

func (c *client) get(t *testing.T, id string) lifecycle.Sandbox {
	t.Helper()
	response, err := c.api.GetSandboxWithResponse(context.WithoutCancel(t.Context()), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON200 == nil {
		t.Fatalf("get %s: %s: %s", id, response.Status(), response.Body)
	}
	return *response.JSON200
}

// await polls until the sandbox has the state.
func (c *client) await(t *testing.T, id, state string) lifecycle.Sandbox {
	t.Helper()
	return c.awaitWithin(t, id, state, patience)
}

func (c *client) awaitWithin(t *testing.T, id, state string, limit time.Duration) lifecycle.Sandbox {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) { // between two looks
		sandbox := c.get(t, id)
		switch got := sandbox.Status; {
		case got.State == state:
			return sandbox
		case final(got.State):
			t.Fatalf("sandbox %s is %s (%s: %s), want %s", id, got.State, got.Reason, got.Message, state)
		case time.Now().After(deadline):
			t.Fatalf("sandbox %s is still %s (%s: %s) after %v, want %s", id, got.State, got.Reason, got.Message, limit, state)
		}
	}
}

func final(state string) bool { return state == "Terminated" || state == "Failed" }

// everything lists all sandboxes that the key sees.
func (c *client) everything(t *testing.T) []lifecycle.Sandbox {
	t.Helper()
	size := 1000
	response, err := c.api.ListSandboxesWithResponse(context.WithoutCancel(t.Context()), &lifecycle.ListSandboxesParams{PageSize: &size})
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON200 == nil {
		t.Fatalf("list: %s: %s", response.Status(), response.Body)
	}
	return response.JSON200.Items
}

// act makes a request without a body about a sandbox and expects a status.
func (c *client) act(t *testing.T, method, path string, status int) {
	t.Helper()
	if got := c.send(t, method, "/v1/sandboxes/"+path, ""); got.status != status {
		t.Fatalf("%s %s: %s, want %d", method, path, got, status)
	}
}

func (c *client) delete(t *testing.T, id string) {
	t.Helper()
	c.act(t, http.MethodDelete, id, http.StatusNoContent)
}

func (c *client) pause(t *testing.T, id string) {
	t.Helper()
	c.act(t, http.MethodPost, id+"/pause", http.StatusAccepted)
}

func (c *client) resume(t *testing.T, id string) {
	t.Helper()
	c.act(t, http.MethodPost, id+"/resume", http.StatusAccepted)
}

func ids(sandboxes []lifecycle.Sandbox) []string {
	var list []string
	for _, sandbox := range sandboxes {
		list = append(list, sandbox.ID)
	}
	return slices.Clip(list)
}

// decode reads the JSON body of a success.
func decode[T any](a answer) (T, error) {
	var body T
	if a.status >= http.StatusMultipleChoices {
		return body, fmt.Errorf("got %s", a)
	}
	return body, json.Unmarshal([]byte(a.body), &body)
}
