package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve/servetest"
	"sandbox.internal/server/config"
)

const (
	userKey   = "the-key-of-a-user"
	otherKey  = "the-key-of-another-user"
	viewerKey = "the-key-of-a-viewer"
	slowKey   = "the-key-of-a-viewer-who-may-ask-once-a-second"
)

const whileStopping = "only in the moment between the end of the backend and the end of the connections"

// unprovoked lists the answers of the contract that TestErrors cannot bring about, and why.
var unprovoked = map[string]string{
	"getVersion 500":      "it reads two constants",
	"getSandbox 500":      "it reads memory alone",
	"listSandboxes 500":   "it reads memory alone",
	"getEndpoint 500":     "it reads memory alone",
	"createSandbox 503":   whileStopping,
	"listSandboxes 503":   whileStopping,
	"getSandbox 503":      whileStopping,
	"deleteSandbox 503":   whileStopping,
	"pauseSandbox 503":    whileStopping,
	"resumeSandbox 503":   whileStopping,
	"renewExpiration 503": whileStopping,
	"getEndpoint 503":     whileStopping,
	"updateMetadata 503":  whileStopping,
	"getLogs 503":         "the engine would have to be away",

	"getNetworkPolicy 500":     "the sidecar would have to answer nonsense",
	"listNetworkDecisions 500": "the sidecar would have to answer nonsense",
	"proposeNetworkPolicy 500": "the sidecar would have to answer nonsense",

	"streamEvents 503":        whileStopping,
	"streamSandboxEvents 503": whileStopping,
}

// TestErrors provokes every error of the documents' tables and every other one that the contract declares. Its subtests share two
// sandboxes, because no refused request changes anything.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := start(t, plan{
		keys: []config.Key{
			{Name: "user", SHA256: digest(userKey), Role: config.RoleUser},
			{Name: "other", SHA256: digest(otherKey), Role: config.RoleUser},
			{Name: "viewer", SHA256: digest(viewerKey), Role: config.RoleViewer},
			{Name: "slow", SHA256: digest(slowKey), Role: config.RoleViewer, RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
		},
	})
	ended := s.create(t, idle())
	running, paused := s.running(t, idle()), s.running(t, idle())
	s.pause(t, paused)
	s.delete(t, ended)
	s.await(t, ended, "Terminated")

	t.Run("keys", func(t *testing.T) { testKeys(t, s, running) })
	t.Run("scopes", func(t *testing.T) { testScopes(t, s) })
	t.Run("create", func(t *testing.T) { testRefusedCreates(t, s) })
	t.Run("renew", func(t *testing.T) { testRefusedRenewals(t, s, running) })
	t.Run("list", func(t *testing.T) { testRefusedListings(t, s) })
	t.Run("port", func(t *testing.T) { testRefusedPorts(t, s, running) })
	t.Run("states", func(t *testing.T) { testConflicts(t, s, running, paused, ended) })
	t.Run("unknown id", func(t *testing.T) { testUnknownIDs(t, s) })
	t.Run("too large", func(t *testing.T) { testTooLarge(t, s, running) })
	t.Run("idempotency", func(t *testing.T) { testIdempotency(t, s) })
	t.Run("lost log", func(t *testing.T) { testLostLog(t, s) })
	t.Run("extensions", func(t *testing.T) { testRefusedExtensions(t, s, running) })
	t.Run("too often", func(t *testing.T) { testTooOften(t, s) })
	t.Run("internal", func(t *testing.T) { testInternalErrors(t, s, running, paused, ended) })

	s.act(t, http.MethodPost, paused+"/resume", http.StatusAccepted)
	s.send(t, http.MethodGet, "/health", "")
	s.send(t, http.MethodGet, "/v1/version", "")
	s.renew(t, running, time.Now().Add(time.Hour).Format(time.RFC3339))
	s.endpoint(t, running, daemonPort)
	s.send(t, http.MethodPatch, "/v1/sandboxes/"+running+"/metadata", `{"name":"changed"}`)
	s.send(t, http.MethodGet, "/v1/sandboxes/"+running+"/logs", "")
	s.streamEvents(t, "/v1/events")
	s.streamEvents(t, "/v1/sandboxes/"+running+"/events")
	checkProvoked(t, s, false)
}

// checkProvoked demands that every declared answer of the operations on networks, or of all others, was seen or is written down as one
// that cannot be.
func checkProvoked(t *testing.T, s *service, network bool) {
	t.Helper()
	concerns := func(pair string) bool { return slices.Contains(networkOperations, strings.Fields(pair)[0]) == network }
	for _, pair := range s.conform.Unseen() {
		if _, listed := unprovoked[pair]; !listed && concerns(pair) {
			t.Errorf("the contract declares %q, and nothing here provokes it", pair)
		}
	}
	for pair := range unprovoked {
		if concerns(pair) && slices.Contains(s.conform.Seen(), pair) {
			t.Errorf("%q was provoked: take it off the list", pair)
		}
	}
}

func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// operation is a request about a sandbox that exists or not.
type operation struct{ name, method, path, body string }

func operationsOn(id string) []operation {
	path := "/v1/sandboxes/" + id
	return []operation{
		{"getSandbox", "GET", path, ""},
		{"deleteSandbox", "DELETE", path, ""},
		{"pauseSandbox", "POST", path + "/pause", ""},
		{"resumeSandbox", "POST", path + "/resume", ""},
		{"renewExpiration", "POST", path + "/renew-expiration", renewal(time.Now().Add(time.Hour).Format(time.RFC3339))},
		{"getEndpoint", "GET", path + "/endpoints/80", ""},
		{"updateMetadata", "PATCH", path + "/metadata", `{"name":"changed"}`},
		{"getLogs", "GET", path + "/logs", ""},
		{"streamSandboxEvents", "GET", path + "/events", ""},
	}
}

func renewal(expiresAt string) string { return fmt.Sprintf(`{"expiresAt":%q}`, expiresAt) }

func (c *client) renew(t *testing.T, id, expiresAt string) answer {
	t.Helper()
	return c.send(t, http.MethodPost, "/v1/sandboxes/"+id+"/renew-expiration", renewal(expiresAt))
}

func testKeys(t *testing.T, s *service, id string) {
	document, err := lifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationNeedsKey(t, document, s.url, "getHealth")
	operations := append(operationsOn(id),
		operation{"createSandbox", "POST", "/v1/sandboxes", "{}"},
		operation{"listSandboxes", "GET", "/v1/sandboxes", ""},
		operation{"streamEvents", "GET", "/v1/events", ""},
		operation{"getVersion", "GET", "/v1/version", ""})
	for _, o := range operations {
		wantProblem(t, s.as(t, "").send(t, o.method, o.path, o.body), 401, "UNAUTHORIZED", keyHeader, "required")
		wantProblem(t, s.as(t, "wrong").send(t, o.method, o.path, o.body), 401, "UNAUTHORIZED", keyHeader, "valid")
	}
}

func testScopes(t *testing.T, s *service) {
	user, other, viewer := s.as(t, userKey), s.as(t, otherKey), s.as(t, viewerKey)
	id := user.running(t, idle())
	for _, o := range operationsOn(id) {
		wantProblem(t, other.send(t, o.method, o.path, o.body), 403, "FORBIDDEN", "other")
		if !slices.Contains([]string{"getSandbox", "getLogs", "streamSandboxEvents"}, o.name) {
			wantProblem(t, viewer.send(t, o.method, o.path, o.body), 403, "FORBIDDEN", "viewer")
		}
	}
	body := encode(t, idle())
	wantProblem(t, viewer.send(t, http.MethodPost, "/v1/sandboxes", body), 403, "FORBIDDEN", "viewer", "create")
	if got := ids(user.everything(t)); !slices.Equal(got, []string{id}) {
		t.Errorf("the user sees %q, want only its own %q", got, id)
	}
	if got := other.everything(t); len(got) != 0 {
		t.Errorf("another user sees %v", got)
	}
	if got := len(viewer.everything(t)); got != len(s.everything(t)) || got < 2 {
		t.Errorf("the viewer sees %d sandboxes", got)
	}
	viewer.get(t, id)
	user.delete(t, id)
}

// testTooOften asks each operation until it is refused for that. What is let through meanwhile is refused for another reason.
func testTooOften(t *testing.T, s *service) {
	askTooOften(t, s, append(operationsOn("11111111-2222-4333-8444-555555555555"),
		operation{"createSandbox", "POST", "/v1/sandboxes", "{}"},
		operation{"listSandboxes", "GET", "/v1/sandboxes?page=0", ""},
		operation{"streamEvents", "GET", "/v1/events?after=x", ""},
		operation{"getVersion", "GET", "/v1/version", ""}))
}

func askTooOften(t *testing.T, s *service, operations []operation) {
	slow := s.as(t, slowKey)
	for _, o := range operations {
		eventually(t, o.name+" is asked too often", func() bool {
			got := slow.send(t, o.method, o.path, o.body)
			if got.status == http.StatusTooManyRequests {
				wantProblem(t, got, http.StatusTooManyRequests, "RATE_LIMITED", "1 requests a second")
			}
			return got.status == http.StatusTooManyRequests
		})
	}
}

func testRefusedListings(t *testing.T, s *service) {
	for query, words := range map[string][]string{
		"page=0":                 {"page", "1"},
		"page=-1":                {"page", "1"},
		"page=x":                 {"page", "integer"},
		"pageSize=0":             {"pageSize", "1"},
		"pageSize=1001":          {"pageSize", "1000"},
		"page=1&page=2":          {"page", "once"},
		"state=Sleeping":         {"state", "Sleeping", "Running"},
		"metadata=team":          {"metadata", "team", "key=value"},
		"metadata=%3Dred":        {"metadata", "key=value"},
		"metadata=team%3D%25zz":  {"metadata", "percent"},
		"metadata=a%3D1%26a%3D2": {"metadata", "two different values"},
		"metadata=%zz":           {"query", "%zz"},
	} {
		t.Run(query, func(t *testing.T) {
			wantProblem(t, s.send(t, http.MethodGet, "/v1/sandboxes?"+query, ""), 400, "INVALID_REQUEST_BODY", words...)
		})
	}
}

func testRefusedPorts(t *testing.T, s *service, id string) {
	for _, port := range []string{"0", "65536", "-1", "http"} {
		wantProblem(t, s.send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/"+port, ""), 400, "INVALID_REQUEST_BODY", "port")
	}
}

func testConflicts(t *testing.T, s *service, running, paused, ended string) {
	for _, c := range []struct {
		id, state string
		allowed   []string // operations
	}{
		{running, "Running", []string{"getSandbox", "deleteSandbox", "pauseSandbox", "renewExpiration", "getEndpoint", "updateMetadata"}},
		{paused, "Paused", []string{"getSandbox", "deleteSandbox", "resumeSandbox", "renewExpiration", "getEndpoint", "updateMetadata"}},
		{ended, "Terminated", []string{"getSandbox"}},
	} {
		for _, o := range operationsOn(c.id) {
			if !slices.Contains(append(c.allowed, "getLogs", "streamSandboxEvents"), o.name) {
				t.Run(o.name+" while "+c.state, func(t *testing.T) {
					wantProblem(t, s.send(t, o.method, o.path, o.body), 409, "CONFLICT", c.state)
				})
			}
		}
	}
}

// testLostLog has somebody else remove a container, and the end of its log with it.
func testLostLog(t *testing.T, s *service) {
	id := s.running(t, idle())
	if err := s.engine.Remove(t.Context(), "sandbox-"+id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sandbox is Failed", func() bool { return s.get(t, id).Status.State == "Failed" })
	wantProblem(t, s.send(t, http.MethodGet, "/v1/sandboxes/"+id+"/logs", ""), 409, "CONFLICT", "lost", "Failed")
}

func testRefusedExtensions(t *testing.T, s *service, id string) {
	path := "/v1/sandboxes/" + id
	for query, word := range map[string]string{
		path + "/logs?tail=-1":       "tail",
		path + "/logs?tail=many":     "tail",
		path + "/logs?since=today":   "since",
		path + "/logs?follow=maybe":  "follow",
		path + "/events?after=-1":    "after",
		path + "/events?after=x":     "after",
		"/v1/events?after=1.5":       "after",
		"/v1/events?after=1&after=2": "once",
	} {
		wantProblem(t, s.send(t, http.MethodGet, query, ""), 400, "INVALID_REQUEST_BODY", word)
	}
	for _, events := range []string{path + "/events", "/v1/events"} {
		for _, last := range []string{"x", "-1", "1.5", "99999999999999999999"} {
			wantProblem(t, s.send(t, http.MethodGet, events, "", "Last-Event-ID", last), 400, "INVALID_REQUEST_BODY", "Last-Event-ID")
		}
	}
	for body, word := range map[string]string{
		`[]`:                         "object",
		`null`:                       "body",
		`"name"`:                     "object",
		`{"name":1}`:                 "string",
		`{"name":`:                   "JSON",
		`{"":"x"}`:                   "key",
		`{"sandbox.internal/x":"y"}`: "reserved",
		`{"name":"` + strings.Repeat("x", 4097) + `"}`: "4096",
		`{"` + strings.Repeat("x", 257) + `":""}`:      "256",
	} {
		wantProblem(t, s.send(t, http.MethodPatch, path+"/metadata", body), 400, "INVALID_REQUEST_BODY", word)
	}
	wantProblem(t, s.send(t, http.MethodPatch, path+"/metadata", `{}`, "Content-Type", "application/json"), 400, "INVALID_REQUEST_BODY", "merge-patch")
	wantProblem(t, s.send(t, http.MethodPatch, path+"/metadata", `{"name":"`+strings.Repeat("x", 1<<20)+`"}`), 413, "REQUEST_TOO_LARGE", "1048576")
}

func testUnknownIDs(t *testing.T, s *service) {
	for _, id := range []string{uuid.NewString(), "x", "%2e%2e%2fhealth"} {
		for _, o := range operationsOn(id) {
			t.Run(o.name, func(t *testing.T) {
				wantProblem(t, s.send(t, o.method, o.path, o.body), 404, "SANDBOX_NOT_FOUND", "does not exist")
			})
		}
	}
}

func testTooLarge(t *testing.T, s *service, id string) {
	body := `{"expiresAt":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/" + id + "/renew-expiration"} {
		wantProblem(t, s.send(t, http.MethodPost, path, body), 413, "REQUEST_TOO_LARGE", "body", "1048576")
	}
}

func testIdempotency(t *testing.T, s *service) {
	key := uuid.NewString()
	first := encode(t, idle())
	var id string
	for range 3 {
		got, err := decode[lifecycle.CreatedSandbox](s.send(t, http.MethodPost, "/v1/sandboxes", first, "Idempotency-Key", key))
		if err != nil {
			t.Fatal(err)
		}
		if id != "" && got.ID != id {
			t.Errorf("the same key and body gave %s and %s", id, got.ID)
		}
		id = got.ID
	}
	other := idle()
	other.Timeout++
	wantProblem(t, s.send(t, http.MethodPost, "/v1/sandboxes", encode(t, other), "Idempotency-Key", key), 409, "CONFLICT", "Idempotency-Key", key)
	s.delete(t, id)
}

func encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func testRefusedRenewals(t *testing.T, s *service, id string) {
	stamp := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	for name, c := range map[string]struct {
		body  string
		words []string
	}{
		"the past":           {renewal(stamp(-time.Minute)), []string{"expiresAt", "in the future"}},
		"before the current": {renewal(stamp(time.Minute)), []string{"expiresAt", "later than the current expiry"}},
		"the current":        {renewal(s.get(t, id).ExpiresAt.Format(time.RFC3339Nano)), []string{"expiresAt", "later than the current expiry"}},
		"too far":            {renewal(stamp(25 * time.Hour)), []string{"expiresAt", "86400 seconds"}},
		"no time":            {renewal("tomorrow"), []string{"expiresAt"}},
		"a number":           {`{"expiresAt":1}`, []string{"expiresAt", "string"}},
		"missing":            {`{}`, []string{"expiresAt"}},
		"unknown field":      {`{"expiresAt":"2030-01-01T00:00:00Z","expiresat":"x"}`, []string{"expiresat"}},
		"malformed":          {`{"expiresAt":`, []string{"body", "JSON"}},
		"empty":              {``, []string{"body", "required"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.send(t, http.MethodPost, "/v1/sandboxes/"+id+"/renew-expiration", c.body)
			wantProblem(t, got, 400, "INVALID_REQUEST_BODY", c.words...)
		})
	}
}

// body returns the JSON of a create that is right, but for the changes. A nil value takes the field away.
func body(t *testing.T, changes map[string]any) string {
	t.Helper()
	fields := map[string]any{}
	if err := json.Unmarshal([]byte(encode(t, idle())), &fields); err != nil {
		t.Fatal(err)
	}
	maps.Copy(fields, changes)
	maps.DeleteFunc(fields, func(_ string, v any) bool { return v == nil })
	return encode(t, fields)
}
