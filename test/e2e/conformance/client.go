package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/wait"
)

// Client sends requests to a service with one key.
type Client struct {
	URL    string
	Key    string
	Images Images // images of sandboxes
	HTTP   *http.Client
	API    *lifecycle.ClientWithResponses
}

func (c *Client) authorise(_ context.Context, request *http.Request) error {
	if c.Key != "" {
		request.Header.Set(KeyHeader, c.Key)
	}
	return nil
}

// As returns a client of the same service with another key.
func (c *Client) As(t *testing.T, key string) *Client {
	t.Helper()
	other := &Client{URL: c.URL, Key: key, Images: c.Images, HTTP: c.HTTP}
	var err error
	other.API, err = lifecycle.NewClientWithResponses(c.URL, lifecycle.WithHTTPClient(c.HTTP),
		lifecycle.WithRequestEditorFn(other.authorise))
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// Answer is a response whose body was read.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Body) }

// Send makes a request that the typed client would not make. Headers are pairs of name and value.
func (c *Client) Send(t *testing.T, method, path, body string, headers ...string) Answer {
	t.Helper()
	got, err := c.Try(method, path, body, headers...)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return got
}

// Try is send for a service that may be killed meanwhile.
func (c *Client) Try(method, path, body string, headers ...string) (Answer, error) {
	request, err := http.NewRequest(method, c.URL+path, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
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
	response, err := c.HTTP.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, string(content)}, err
}

// WantProblem checks an error: the decided body and nothing else, and a message that holds all of
// the words.
func WantProblem(t *testing.T, got Answer, status int, code string, words ...string) {
	t.Helper()
	var body map[string]string
	if err := json.Unmarshal([]byte(got.Body), &body); err != nil {
		t.Errorf("the body of an error is an object of strings: %v; got %s", err, got)
		return
	}
	if got.Status != status || body["code"] != code {
		t.Errorf("got %s, want %d %s", got, status, code)
	}
	if len(body) != 3 || body["detail"] == "" || body["detail"] != body["message"] {
		t.Errorf("the body %s is not {code, message, detail} with two equal texts", got.Body)
	}
	for _, word := range words {
		if !strings.Contains(body["message"], word) {
			t.Errorf("message %q does not say %q", body["message"], word)
		}
	}
	if kind := got.Header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("Content-Type is %q", kind)
	}
}

// Idle asks for a sandbox that does nothing by itself.
func (c *Client) Idle() lifecycle.CreateSandboxRequest {
	return Request(c.Images.Busybox, "sleep", "1000")
}

// minLifetime is the shortest timeout of a sandbox that the service accepts.
const minLifetime = time.Minute

// Lifetime returns the timeout of [Request]: two patiences, so that no sandbox expires within a
// wait of its test.
func Lifetime() time.Duration {
	return max(2*wait.Patience(), minLifetime).Truncate(time.Second)
}

// Request asks for a small sandbox, which expires after [Lifetime].
func Request(image string, entrypoint ...string) lifecycle.CreateSandboxRequest {
	memory := "256Mi"
	return lifecycle.CreateSandboxRequest{
		Image:          lifecycle.Image{URI: image},
		Timeout:        int(Lifetime().Seconds()),
		ResourceLimits: &lifecycle.ResourceLimits{Memory: &memory},
		Entrypoint:     entrypoint,
	}
}

// Create has a sandbox accepted and returns its id.
func (c *Client) Create(t *testing.T, r lifecycle.CreateSandboxRequest) string {
	t.Helper()
	response, err := c.API.CreateSandboxWithResponse(t.Context(), nil, r)
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON202 == nil {
		t.Fatalf("create: %s: %s", response.Status(), response.Body)
	}
	return response.JSON202.ID
}

// Running returns the id of a new sandbox that is Running.
func (c *Client) Running(t *testing.T, r lifecycle.CreateSandboxRequest) string {
	t.Helper()
	id := c.Create(t, r)
	c.Await(t, id, "Running")
	return id
}

// Get returns a sandbox, which must be there.
func (c *Client) Get(t *testing.T, id string) lifecycle.Sandbox {
	t.Helper()
	response, err := c.API.GetSandboxWithResponse(context.WithoutCancel(t.Context()), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.JSON200 == nil {
		t.Fatalf("get %s: %s: %s", id, response.Status(), response.Body)
	}
	return *response.JSON200
}

// Await polls until the sandbox has the state.
func (c *Client) Await(t *testing.T, id, state string) lifecycle.Sandbox {
	t.Helper()
	return c.AwaitWithin(t, id, state, wait.Patience())
}

// AwaitWithin is [Client.Await] with a limit of its own.
func (c *Client) AwaitWithin(t *testing.T, id, state string,
	limit time.Duration) lifecycle.Sandbox {
	t.Helper()
	var sandbox lifecycle.Sandbox
	holds := wait.Within(limit, func() bool {
		sandbox = c.Get(t, id)
		return sandbox.Status.State == state || Final(sandbox.Status.State)
	})
	switch got := sandbox.Status; {
	case !holds:
		t.Fatalf("sandbox %s is still %s (%s: %s) after %v, want %s", id, got.State, got.Reason,
			got.Message, limit, state)
	case got.State != state:
		t.Fatalf("sandbox %s is %s (%s: %s), want %s", id, got.State, got.Reason, got.Message,
			state)
	}
	return sandbox
}

// Final reports whether a sandbox in that state has ended.
func Final(state string) bool { return state == "Terminated" || state == "Failed" }

// Everything lists all sandboxes that the key may read.
func (c *Client) Everything(t *testing.T) []lifecycle.Sandbox {
	t.Helper()
	var all []lifecycle.Sandbox
	seen := map[string]bool{} // a page is taken from what there is then, so a new sandbox moves others to the next one
	for page, size := 1, 1000; ; page++ {
		response, err := c.API.ListSandboxesWithResponse(context.WithoutCancel(t.Context()),
			&lifecycle.ListSandboxesParams{Page: &page, PageSize: &size})
		if err != nil {
			t.Fatal(err)
		}
		if response.JSON200 == nil {
			t.Fatalf("list: %s: %s", response.Status(), response.Body)
		}
		for _, sandbox := range response.JSON200.Items {
			if !seen[sandbox.ID] {
				seen[sandbox.ID] = true
				all = append(all, sandbox)
			}
		}
		if !response.JSON200.Pagination.HasNextPage {
			return all
		}
	}
}

// Act makes a request without a body about a sandbox and expects a status.
func (c *Client) Act(t *testing.T, method, path string, status int) {
	t.Helper()
	if got := c.Send(t, method, "/v1/sandboxes/"+path, ""); got.Status != status {
		t.Fatalf("%s %s: %s, want %d", method, path, got, status)
	}
}

// Delete has a sandbox deleted. It does not wait for the end.
func (c *Client) Delete(t *testing.T, id string) {
	t.Helper()
	c.Act(t, http.MethodDelete, id, http.StatusNoContent)
}

// Pause has a sandbox paused, and waits until it is: a backend may take its time after the 202.
func (c *Client) Pause(t *testing.T, id string) {
	t.Helper()
	c.Act(t, http.MethodPost, id+"/pause", http.StatusAccepted)
	c.Await(t, id, "Paused")
}

// Resume has a paused sandbox go on, and waits until it does.
func (c *Client) Resume(t *testing.T, id string) {
	t.Helper()
	c.Act(t, http.MethodPost, id+"/resume", http.StatusAccepted)
	c.Await(t, id, "Running")
}

// IDs returns the ids of sandboxes.
func IDs(sandboxes []lifecycle.Sandbox) []string {
	var list []string
	for _, sandbox := range sandboxes {
		list = append(list, sandbox.ID)
	}
	return slices.Clip(list)
}

// Decode reads the JSON body of a success.
func Decode[T any](a Answer) (T, error) {
	var body T
	if a.Status >= http.StatusMultipleChoices {
		return body, fmt.Errorf("got %s", a)
	}
	return body, json.Unmarshal([]byte(a.Body), &body)
}

// Settled polls until the service has nothing left to do for the sandbox.
func (c *Client) Settled(t *testing.T, id string) lifecycle.SandboxStatus {
	t.Helper()
	var status lifecycle.SandboxStatus
	wait.Until(t, id+" has settled", func() bool {
		status = c.Get(t, id).Status
		return status.State == "Running" || status.State == "Paused" || Final(status.State)
	})
	return status
}

// Operation is a request about a sandbox that exists or not.
type Operation struct{ Name, Method, Path, Body string }

// Encode returns a value as JSON.
func Encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Contains checks that a text holds all of the words.
func Contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q does not say %q", text, word)
		}
	}
}

// Fetch gets a URL past every contract. Headers are pairs of name and value.
func Fetch(t *testing.T, url string, headers ...string) Answer {
	t.Helper()
	base := &http.Transport{DisableKeepAlives: true}
	got, err := (&Client{HTTP: &http.Client{Transport: base,
		Timeout: wait.Patience()}}).Try(http.MethodGet, url, "", headers...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Renewal is the body of a renewal.
func Renewal(expiresAt string) string { return fmt.Sprintf(`{"expiresAt":%q}`, expiresAt) }

// Renew asks for another expiry, in RFC 3339.
func (c *Client) Renew(t *testing.T, id, expiresAt string) Answer {
	t.Helper()
	return c.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/renew-expiration", Renewal(expiresAt))
}

// Body returns the JSON of a create that is right, but for the changes. A nil value takes the field
// away.
func (c *Client) Body(t *testing.T, changes map[string]any) string {
	t.Helper()
	fields := map[string]any{}
	if err := json.Unmarshal([]byte(Encode(t, c.Idle())), &fields); err != nil {
		t.Fatal(err)
	}
	maps.Copy(fields, changes)
	maps.DeleteFunc(fields, func(_ string, v any) bool { return v == nil })
	return Encode(t, fields)
}
