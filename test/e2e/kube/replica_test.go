package kube_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

const (
	limitedKey  = "the-key-of-a-user-with-one-sandbox-only"
	replacedKey = "the-key-of-a-viewer-that-is-replaced"
)

// replicas are two services with the same sandboxes.
type replicas struct {
	services [2]*conformance.Service
	base     http.RoundTripper
	sent     atomic.Int64
}

func startReplicas(t *testing.T) *replicas {
	signing := filepath.Join(t.TempDir(), "signing.key")
	if err := os.WriteFile(signing, []byte(strings.Repeat("k", 48)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// As in the chart's configuration.
	const key = "[[server.keys]]\nname = %q\nsha256 = %q\nrole = %q\nmax_sandboxes = %d\n"
	plan := conformance.Plan{Program: true, Server: fmt.Sprintf("signing_key = %q\nconsole = true\nmcp = true\n"+key+key, signing,
		"limited", conformance.Digest(limitedKey), "user", 1, "replaced", conformance.Digest(replacedKey), "viewer", 0)}
	one := onKubernetes()
	var same string
	settings := one.Settings
	one.Settings = func(t *testing.T, instance string, p conformance.Plan) string {
		same = settings(t, instance, p)
		return same
	}
	other := onKubernetes()
	other.Settings = func(*testing.T, string, conformance.Plan) string { return same }
	base := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(base.CloseIdleConnections)
	return &replicas{base: base, services: [2]*conformance.Service{conformance.Start(t, one, plan), conformance.Start(t, other, plan)}}
}

// RoundTrip sends a request to the next replica, whatever its host. It implements
// http.RoundTripper.
func (r *replicas) RoundTrip(request *http.Request) (*http.Response, error) {
	s := r.services[r.sent.Add(1)%2]
	to := request.Clone(request.Context())
	to.URL.Scheme, to.URL.Host = "http", strings.TrimPrefix(s.URL, "http://")
	to.Host = "sandbox.example.com" // the one address that clients know
	if to.Header.Get(conformance.KeyHeader) == "" && to.Header.Get("Cookie") == "" && !strings.Contains(to.URL.RawQuery, "sandbox-signature") {
		to.Header.Set(conformance.KeyHeader, conformance.AdminKey)
	}
	if strings.HasPrefix(to.URL.Path, "/v1/") && !strings.Contains(to.URL.Path, "/proxy/") {
		return s.Conform.RoundTrip(to)
	}
	return r.base.RoundTrip(to)
}

// send makes a request at the next replica. Headers are pairs of name and value.
func (r *replicas) send(t *testing.T, method, path, body string, headers ...string) conformance.Answer {
	t.Helper()
	c := conformance.Client{URL: "http://replicas", HTTP: &http.Client{Transport: r, Timeout: wait.Patience()}}
	got, err := c.Try(method, path, body, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

// want is send with the only right status.
func (r *replicas) want(t *testing.T, status int, method, path, body string, headers ...string) conformance.Answer {
	t.Helper()
	got := r.send(t, method, path, body, headers...)
	if got.Status != status {
		t.Errorf("request %d, %s %s: %s, want %d", r.sent.Load(), method, path, got, status)
	}
	return got
}

func (r *replicas) get(t *testing.T, id string) lifecycle.Sandbox {
	t.Helper()
	return decoded[lifecycle.Sandbox](t, r.want(t, http.StatusOK, http.MethodGet, "/v1/sandboxes/"+id, ""))
}

func (r *replicas) running(t *testing.T) string {
	t.Helper()
	request := conformance.Encode(t, conformance.Request(baseImage, "sleep", "3600"))
	id := decoded[lifecycle.Sandbox](t, r.want(t, http.StatusAccepted, http.MethodPost, "/v1/sandboxes", request)).ID
	r.services[0].Await(t, id, "Running")
	r.services[1].Await(t, id, "Running")
	return id
}

func decoded[T any](t *testing.T, a conformance.Answer) T {
	t.Helper()
	body, err := conformance.Decode[T](a)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func created(a conformance.Answer) string {
	body, _ := conformance.Decode[lifecycle.Sandbox](a)
	return body.ID
}

// dial opens a WebSocket at the next replica, and returns the status of the answer.
func (r *replicas) dial(t *testing.T, path string, headers []string) int {
	t.Helper()
	header := http.Header{"Origin": {"http://sandbox.example.com"}}
	for i := 0; i < len(headers); i += 2 {
		header.Set(headers[i], headers[i+1])
	}
	conn, response, err := websocket.Dial(t.Context(), "ws://replicas"+path, &websocket.DialOptions{HTTPHeader: header,
		HTTPClient: &http.Client{Transport: r, Timeout: wait.Patience()}})
	if err == nil {
		conn.CloseNow()
	}
	if response == nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

// signIn returns the headers of a new session of the console.
func (r *replicas) signIn(t *testing.T, key string) []string {
	t.Helper()
	answer := r.want(t, http.StatusCreated, http.MethodPost, "/console/session", fmt.Sprintf(`{"key": %q}`, key))
	cookie, _, _ := strings.Cut(answer.Header.Get("Set-Cookie"), ";")
	return []string{"Cookie", cookie, "X-Sandbox-Console", decoded[struct{ Token string }](t, answer).Token}
}

// terminal returns the name of a new terminal.
func (r *replicas) terminal(t *testing.T, id string) string {
	t.Helper()
	answer := r.send(t, http.MethodPost, "/v1/sandboxes/"+id+"/proxy/44772/pty", `{}`)
	return decoded[struct{ ID string }](t, answer).ID
}
