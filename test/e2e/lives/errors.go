package lives

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/serve/servetest"
	"sandbox.internal/server/config"
	"sandbox.internal/test/wait"
)

// networkOperations are the operations that need a sidecar.
var networkOperations = []string{
	"getNetworkPolicy", "replaceNetworkPolicy", "mergeNetworkPolicyRules",
	"deleteNetworkPolicyRules", "listNetworkDecisions", "proposeNetworkPolicy",
}

// imageOperations are the operations that need a backend which manages images.
var imageOperations = []string{"listImages", "pullImage", "loadImages", "removeImage", "pruneImages"}

// Keys of the services that have more than one.
const (
	userKey   = "the-key-of-a-user"
	OtherKey  = "the-key-of-another-user"
	ViewerKey = "the-key-of-a-viewer"
	SlowKey   = "the-key-of-a-viewer-who-may-ask-once-a-second"
)

const whileStopping = "only in the moment between the end of the backend and the end of the connections"

// Why nothing in a sandbox can bring its daemon to another answer. The tests of server/api put
// another server in the daemon's place.
const (
	thisRelease = "sandboxes have the daemon of this release, which records activity"
	portOfInit  = "init keeps the daemon's port, and a request waits there for the next daemon"
)

// unprovoked lists the answers of the contract that no backend can bring about, and why.
// [Backend].Unprovoked has those of one.
var unprovoked = map[string]string{
	"getVersion 500":          "nothing that it reads can fail",
	"createSandbox 503":       whileStopping,
	"listSandboxes 503":       whileStopping,
	"getSandbox 503":          whileStopping,
	"deleteSandbox 503":       whileStopping,
	"pauseSandbox 503":        whileStopping,
	"resumeSandbox 503":       whileStopping,
	"renewExpiration 503":     whileStopping,
	"getEndpoint 503":         whileStopping,
	"updateMetadata 503":      whileStopping,
	"streamEvents 503":        whileStopping,
	"streamHostLoad 500":      "needs a machine without /proc",
	"streamHostLoad 503":      whileStopping,
	"streamSandboxEvents 503": whileStopping,

	"getActivity 501":   thisRelease,
	"getActivity 502":   portOfInit,
	"getActivity 503":   whileStopping,
	"watchActivity 501": thisRelease,
	"watchActivity 502": portOfInit,
	"watchActivity 503": whileStopping,
}

// testErrors provokes every error of the documents' tables and every other one that the contract
// declares. Its subtests share two sandboxes, because no refused request changes anything.
func testErrors(t *testing.T, b Backend) {
	s := Start(t, b, Plan{
		Keys: []config.Key{
			{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
			{Name: "other", SHA256: Digest(OtherKey), Role: config.RoleUser},
			{Name: "viewer", SHA256: Digest(ViewerKey), Role: config.RoleViewer},
			{Name: "slow", SHA256: Digest(SlowKey), Role: config.RoleViewer,
				RateLimit: &config.RateLimit{RequestsPerSecond: 1, Burst: 1}},
		},
	})
	ended := s.Create(t, s.Idle())
	running, paused := s.Running(t, s.Idle()), s.Running(t, s.Idle())
	s.Pause(t, paused)
	s.Delete(t, ended)
	s.Await(t, ended, "Terminated")

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
	if b.Destroy != nil {
		t.Run("lost log", func(t *testing.T) { testLostLog(t, s) })
	}
	t.Run("extensions", func(t *testing.T) { testRefusedExtensions(t, s, running) })
	t.Run("unknown parameter", func(t *testing.T) {
		RefuseUnknownParameters(t, s, append(OperationsOn(running),
			Operation{"getHealth", "GET", "/health", ""},
			Operation{"getVersion", "GET", "/v1/version", ""},
			Operation{"streamHostLoad", "GET", "/v1/host/load", ""}))
	})
	t.Run("host", func(t *testing.T) { testHostLoad(t, s) })
	t.Run("activity", func(t *testing.T) { testActivity(t, s, running) })
	if !b.Suspends {
		WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes/"+running+"/pause", `{"filesOnly":true}`), 501, "NOT_IMPLEMENTED", "filesOnly")
	}
	t.Run("too often", func(t *testing.T) { testTooOften(t, s) })
	if b.InternalErrors != nil {
		t.Run("internal", func(t *testing.T) { b.InternalErrors(t, s, running, paused, ended) })
	}

	s.Resume(t, paused)
	s.Send(t, http.MethodGet, "/health", "")
	s.Send(t, http.MethodGet, "/v1/version", "")
	s.Renew(t, running, time.Now().Add(time.Hour).Format(time.RFC3339))
	s.Endpoint(t, running, DaemonPort)
	s.Send(t, http.MethodPatch, "/v1/sandboxes/"+running+"/metadata", `{"name":"changed"}`)
	s.Send(t, http.MethodGet, "/v1/sandboxes/"+running+"/logs", "")
	s.StreamEvents(t, "/v1/events")
	s.StreamEvents(t, "/v1/sandboxes/"+running+"/events")
	CheckProvoked(t, s, false)
}

// CheckProvoked demands that every declared answer of the operations on networks, or of all others
// but those on images, keys, snapshots and sleep, was seen or is written down as one that cannot
// be.
func CheckProvoked(t *testing.T, s *Service, network bool) {
	t.Helper()
	concerns := func(pair string) bool {
		operation := strings.Fields(pair)[0]
		return slices.Contains(networkOperations, operation) == network &&
			!slices.Contains(imageOperations, operation) && !slices.Contains(keyOperations, operation) &&
			!slices.Contains(snapshotOperations, operation) && !slices.Contains(sleepOperations, operation) &&
			pair != "createSandbox 404" && pair != "createSandbox 501"
	}
	excused := maps.Clone(unprovoked)
	maps.Copy(excused, s.backend.Unprovoked)
	if s.backend.Suspends {
		excused["pauseSandbox 501"] = "this backend keeps files without memory"
	}
	for _, pair := range s.Conform.Unseen() {
		if _, listed := excused[pair]; !listed && concerns(pair) {
			t.Errorf("the contract declares %q, and nothing here provokes it", pair)
		}
	}
	for pair := range excused {
		if concerns(pair) && slices.Contains(s.Conform.Seen(), pair) {
			t.Errorf("%q was provoked: take it off the list", pair)
		}
	}
}

// Digest returns a key as it is configured.
func Digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// OperationsOn are all operations on a sandbox but those that need a sidecar.
func OperationsOn(id string) []Operation {
	path := "/v1/sandboxes/" + id
	return []Operation{
		{"getSandbox", "GET", path, ""},
		{"deleteSandbox", "DELETE", path, ""},
		{"pauseSandbox", "POST", path + "/pause", ""},
		{"resumeSandbox", "POST", path + "/resume", ""},
		{"renewExpiration", "POST", path + "/renew-expiration",
			Renewal(time.Now().Add(time.Hour).Format(time.RFC3339))},
		{"getEndpoint", "GET", path + "/endpoints/80", ""},
		{"updateMetadata", "PATCH", path + "/metadata", `{"name":"changed"}`},
		{"getLogs", "GET", path + "/logs", ""},
		{"streamSandboxEvents", "GET", path + "/events", ""},
		{"getActivity", "GET", path + "/activity", ""},
		{"watchActivity", "GET", path + "/activity/watch", ""},
	}
}

// readOperations are those of [OperationsOn] that a viewer may ask for.
var readOperations = []string{
	"getSandbox", "getLogs", "streamSandboxEvents", "getActivity", "watchActivity",
}

// Renewal is the body of a renewal.
func Renewal(expiresAt string) string { return fmt.Sprintf(`{"expiresAt":%q}`, expiresAt) }

// Renew asks for another expiry, in RFC 3339.
func (c *Client) Renew(t *testing.T, id, expiresAt string) Answer {
	t.Helper()
	return c.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/renew-expiration", Renewal(expiresAt))
}

func testKeys(t *testing.T, s *Service, id string) {
	document, err := LifecycleContract()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationNeedsKey(t, document, s.URL, "getHealth")
	operations := append(OperationsOn(id),
		Operation{"createSandbox", "POST", "/v1/sandboxes", "{}"},
		Operation{"listSandboxes", "GET", "/v1/sandboxes", ""},
		Operation{"streamEvents", "GET", "/v1/events", ""},
		Operation{"streamHostLoad", "GET", "/v1/host/load", ""},
		Operation{"getVersion", "GET", "/v1/version", ""})
	for _, o := range operations {
		WantProblem(t, s.As(t, "").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED",
			KeyHeader, "required")
		WantProblem(t, s.As(t, "wrong").Send(t, o.Method, o.Path, o.Body), 401, "UNAUTHORIZED",
			KeyHeader, "valid")
	}
}

func testScopes(t *testing.T, s *Service) {
	user, other, viewer := s.As(t, userKey), s.As(t, OtherKey), s.As(t, ViewerKey)
	id := user.Running(t, s.Idle())
	for _, o := range OperationsOn(id) {
		WantProblem(t, other.Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "other")
		if !slices.Contains(readOperations, o.Name) {
			WantProblem(t, viewer.Send(t, o.Method, o.Path, o.Body), 403, "FORBIDDEN", "viewer")
		}
	}
	body := Encode(t, s.Idle())
	WantProblem(t, viewer.Send(t, http.MethodPost, "/v1/sandboxes", body), 403, "FORBIDDEN",
		"viewer", "create")
	if got := IDs(user.Everything(t)); !slices.Equal(got, []string{id}) {
		t.Errorf("the user gets %q, want only its own %q", got, id)
	}
	if got := other.Everything(t); len(got) != 0 {
		t.Errorf("another user gets %v", got)
	}
	if got := len(viewer.Everything(t)); got != len(s.Everything(t)) || got < 2 {
		t.Errorf("the viewer gets %d sandboxes", got)
	}
	viewer.Get(t, id)
	user.Delete(t, id)
}

// testTooOften asks each operation until it is refused for that. What is accepted meanwhile is
// refused for another reason.
func testTooOften(t *testing.T, s *Service) {
	AskTooOften(t, s, append(OperationsOn("11111111-2222-4333-8444-555555555555"),
		Operation{"createSandbox", "POST", "/v1/sandboxes", "{}"},
		Operation{"listSandboxes", "GET", "/v1/sandboxes?page=0", ""},
		Operation{"streamEvents", "GET", "/v1/events?after=x", ""},
		Operation{"streamHostLoad", "GET", "/v1/host/load?x=1", ""},
		Operation{"getVersion", "GET", "/v1/version", ""}))
}

// testHostLoad: those who see all sandboxes see how busy their machine is, where that is the
// service's.
func testHostLoad(t *testing.T, s *Service) {
	const path = "/v1/host/load"
	WantProblem(t, s.As(t, userKey).Send(t, http.MethodGet, path, ""), 403, "FORBIDDEN", "user",
		"admin or viewer")
	if _, elsewhere := s.backend.Unprovoked["streamHostLoad 200"]; elsewhere {
		WantProblem(t, s.Send(t, http.MethodGet, path, ""), 501, "NOT_IMPLEMENTED", "its own machine")
		return
	}
	for _, key := range []string{AdminKey, ViewerKey} {
		response, cancel := s.As(t, key).Open(t, path)
		defer cancel()
		lines := bufio.NewScanner(response.Body)
		for count := 0; count < 2; {
			if !lines.Scan() {
				t.Fatalf("%s ends after %d events: %v", response.Status, count, lines.Err())
			}
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var load lifecycle.HostLoad
			if err := json.Unmarshal([]byte(data), &load); err != nil {
				t.Fatal(err)
			}
			if load.CPUCount < 1 || load.MemoryUsedBytes < 1 || load.DiskTotalBytes < load.DiskUsedBytes {
				t.Errorf("%s", data)
			}
			count++
		}
	}
}

// testActivity: whoever may read a sandbox sees what was done in it, by which key, and may follow
// that.
func testActivity(t *testing.T, s *Service, id string) {
	const command = "echo seen by those who read"
	path := "/v1/sandboxes/" + id + "/activity"
	inside := ExecdThroughTheService(t, s.Inside(t, id, DaemonPort))
	inside.Want(t, command, "seen by those who read\n")
	is := func(e lifecycle.ActivityEntry) bool {
		return e.Kind == "command" && e.Text == command && e.Key == "server.api_key"
	}
	for _, key := range []string{AdminKey, ViewerKey} {
		client := s.As(t, key)
		contract := client.HTTP.Transport.(*conform.Transport)
		got, err := Decode[lifecycle.Activity](client.Send(t, http.MethodGet, path, ""))
		if err != nil || !slices.ContainsFunc(got.Entries, is) {
			t.Fatalf("the command is not among %+v, %v", got, err)
		}
		response, cancel := client.Open(t, path+"/watch")
		defer cancel()
		for lines := bufio.NewScanner(response.Body); ; {
			if !lines.Scan() {
				t.Fatalf("%s ends without the command: %v", response.Status, lines.Err())
			}
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var entry lifecycle.ActivityEntry
			err := errors.Join(contract.CheckEvent("ActivityEntry", []byte(data)),
				json.Unmarshal([]byte(data), &entry))
			if err != nil {
				t.Fatal(err)
			}
			if is(entry) {
				break
			}
		}
	}
}

// RefuseUnknownParameters asks each operation with a query parameter that the contract does not
// have.
func RefuseUnknownParameters(t *testing.T, s *Service, operations []Operation) {
	for _, o := range operations {
		WantProblem(t, s.Send(t, o.Method, o.Path+"?unknown=1", o.Body), http.StatusBadRequest,
			"INVALID_REQUEST_BODY", "unknown")
	}
}

// AskTooOften asks with [SlowKey] until each operation is refused for that.
func AskTooOften(t *testing.T, s *Service, operations []Operation) {
	slow := s.As(t, SlowKey)
	for _, o := range operations {
		wait.Until(t, o.Name+" is asked too often", func() bool {
			got := slow.Send(t, o.Method, o.Path, o.Body)
			if got.Status == http.StatusTooManyRequests {
				WantProblem(t, got, http.StatusTooManyRequests, "RATE_LIMITED",
					"1 requests a second")
			}
			return got.Status == http.StatusTooManyRequests
		})
	}
}

func testRefusedListings(t *testing.T, s *Service) {
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
			WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes?"+query, ""), 400,
				"INVALID_REQUEST_BODY", words...)
		})
	}
}

func testRefusedPorts(t *testing.T, s *Service, id string) {
	for _, port := range []string{"0", "65536", "-1", "http"} {
		WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/endpoints/"+port, ""), 400,
			"INVALID_REQUEST_BODY", "port")
	}
}

func testConflicts(t *testing.T, s *Service, running, paused, ended string) {
	for _, c := range []struct {
		id, state string
		allowed   []string // operations
	}{
		{running, "Running",
			[]string{"getSandbox", "deleteSandbox", "pauseSandbox", "renewExpiration",
				"getEndpoint", "updateMetadata", "getActivity", "watchActivity"}},
		{paused, "Paused",
			[]string{"getSandbox", "deleteSandbox", "resumeSandbox", "renewExpiration",
				"getEndpoint", "updateMetadata"}},
		{ended, "Terminated", []string{"getSandbox"}},
	} {
		for _, o := range OperationsOn(c.id) {
			if !slices.Contains(append(c.allowed, "getLogs", "streamSandboxEvents"), o.Name) {
				t.Run(o.Name+" while "+c.state, func(t *testing.T) {
					WantProblem(t, s.Send(t, o.Method, o.Path, o.Body), 409, "CONFLICT", c.state)
				})
			}
		}
	}
}

// testLostLog removes what runs a sandbox past the service, and the end of its log with it.
func testLostLog(t *testing.T, s *Service) {
	id := s.Running(t, s.Idle())
	s.backend.Destroy(t, s.Instance, id)
	wait.Until(t, "the sandbox is Failed",
		func() bool { return s.Get(t, id).Status.State == "Failed" })
	WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes/"+id+"/logs", ""), 409, "CONFLICT",
		"lost", "Failed")
}

func testRefusedExtensions(t *testing.T, s *Service, id string) {
	path := "/v1/sandboxes/" + id
	for query, word := range map[string]string{
		path + "/logs?tail=-1":      "tail",
		path + "/logs?tail=many":    "tail",
		path + "/logs?since=today":  "since",
		path + "/logs?follow=maybe": "follow",
		path + "/events?after=-1":   "after",
		path + "/events?after=x":    "after",
		path + "/activity?after=-1": "after",
		path + "/activity?after=x":  "after",

		path + "/activity/watch?after=-1": "after",
		path + "/activity/watch?after=x":  "after",

		"/v1/events?after=1.5":       "after",
		"/v1/events?after=1&after=2": "once",
	} {
		WantProblem(t, s.Send(t, http.MethodGet, query, ""), 400, "INVALID_REQUEST_BODY", word)
	}
	for _, events := range []string{path + "/events", path + "/activity/watch", "/v1/events"} {
		for _, last := range []string{"x", "-1", "1.5", "99999999999999999999"} {
			WantProblem(t, s.Send(t, http.MethodGet, events, "", "Last-Event-ID", last), 400,
				"INVALID_REQUEST_BODY", "Last-Event-ID")
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
		WantProblem(t, s.Send(t, http.MethodPatch, path+"/metadata", body), 400,
			"INVALID_REQUEST_BODY", word)
	}
	WantProblem(t, s.Send(t, http.MethodPatch, path+"/metadata", `{}`, "Content-Type",
		"text/plain"), 400, "INVALID_REQUEST_BODY", "merge-patch")
	WantProblem(t, s.Send(t, http.MethodPatch, path+"/metadata",
		`{"name":"`+strings.Repeat("x", 1<<20)+`"}`), 413, "REQUEST_TOO_LARGE", "1048576")
}

func testUnknownIDs(t *testing.T, s *Service) {
	for _, id := range []string{uuid.NewString(), "x", "%2e%2e%2fhealth"} {
		for _, o := range OperationsOn(id) {
			t.Run(o.Name, func(t *testing.T) {
				WantProblem(t, s.Send(t, o.Method, o.Path, o.Body), 404, "SANDBOX_NOT_FOUND",
					"does not exist")
			})
		}
	}
}

func testTooLarge(t *testing.T, s *Service, id string) {
	body := `{"expiresAt":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/" + id + "/renew-expiration", "/v1/sandboxes/" + id + "/pause"} {
		WantProblem(t, s.Send(t, http.MethodPost, path, body), 413, "REQUEST_TOO_LARGE", "body",
			"1048576")
	}
}

func testIdempotency(t *testing.T, s *Service) {
	key := uuid.NewString()
	first := Encode(t, s.Idle())
	var id string
	for range 3 {
		got, err := Decode[lifecycle.CreatedSandbox](s.Send(t, http.MethodPost, "/v1/sandboxes",
			first, "Idempotency-Key", key))
		if err != nil {
			t.Fatal(err)
		}
		if id != "" && got.ID != id {
			t.Errorf("the same key and body gave %s and %s", id, got.ID)
		}
		id = got.ID
	}
	other := s.Idle()
	other.Timeout++
	WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", Encode(t, other), "Idempotency-Key",
		key), 409, "CONFLICT", "Idempotency-Key", key)
	s.Delete(t, id)
}

func testRefusedRenewals(t *testing.T, s *Service, id string) {
	stamp := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	for name, c := range map[string]struct {
		body  string
		words []string
	}{
		"the past": {Renewal(stamp(-time.Minute)),
			[]string{"expiresAt", "in the future"}},
		"before the current": {Renewal(stamp(time.Minute)),
			[]string{"expiresAt", "later than the current expiry"}},
		"the current": {Renewal(s.Get(t, id).ExpiresAt.Format(time.RFC3339Nano)),
			[]string{"expiresAt", "later than the current expiry"}},
		"too far": {Renewal(stamp(25 * time.Hour)),
			[]string{"expiresAt", "86400 seconds"}},
		"no time":  {Renewal("tomorrow"), []string{"expiresAt"}},
		"a number": {`{"expiresAt":1}`, []string{"expiresAt", "string"}},
		"missing":  {`{}`, []string{"expiresAt"}},
		"unknown field": {`{"expiresAt":"2030-01-01T00:00:00Z","expiresat":"x"}`,
			[]string{"expiresat"}},
		"malformed": {`{"expiresAt":`, []string{"body", "JSON"}},
		"empty":     {``, []string{"body", "required"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.Send(t, http.MethodPost, "/v1/sandboxes/"+id+"/renew-expiration", c.body)
			WantProblem(t, got, 400, "INVALID_REQUEST_BODY", c.words...)
		})
	}
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
