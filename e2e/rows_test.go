package e2e_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/config"
)

// The tests of this and the other rows_*_test.go files follow the document's tables row by row; e2e/coverage holds their names against
// the document. Each shows what its row promises; what can go wrong is tested elsewhere.

// object is a JSON object whose fields a test looks at one by one.
type object map[string]any

func objectOf(t *testing.T, a answer) object {
	t.Helper()
	got, err := decode[object](a)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// text returns a field that must be a string.
func (o object) text(t *testing.T, field string) string {
	t.Helper()
	got, isString := o[field].(string)
	if !isString {
		t.Errorf("%s is %v, want a string", field, o[field])
	}
	return got
}

// time returns a field that must be RFC 3339 in UTC.
func (o object) time(t *testing.T, field string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, o.text(t, field))
	if err != nil || !strings.HasSuffix(o.text(t, field), "Z") {
		t.Errorf("%s is %v, want RFC 3339 in UTC", field, o[field])
	}
	return at
}

// accept has a creation accepted and returns the answer.
func (c *client) accept(t *testing.T, change map[string]any) answer {
	t.Helper()
	got := c.send(t, http.MethodPost, "/v1/sandboxes", body(t, change))
	if got.status != http.StatusAccepted {
		t.Fatalf("create: %s", got)
	}
	return got
}

func (c *client) fetch(t *testing.T, path string) object {
	t.Helper()
	return objectOf(t, c.send(t, http.MethodGet, path, ""))
}

func (c *client) refuse(t *testing.T, change map[string]any, words ...string) {
	t.Helper()
	wantProblem(t, c.send(t, http.MethodPost, "/v1/sandboxes", body(t, change)), 400, "INVALID_REQUEST_BODY", words...)
}

type fields = map[string]any

func TestRowsOfSandboxes(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	created := objectOf(t, s.accept(t, fields{"metadata": fields{"name": "a label", "team": "red"}}))
	id := created.text(t, "id")
	s.await(t, id, "Running")
	got := s.fetch(t, "/v1/sandboxes/"+id)
	status, _ := got["status"].(map[string]any)
	t.Run("row lifecycle/sandbox/id", func(t *testing.T) {
		if other := s.create(t, idle()); id == "" || other == id || got.text(t, "id") != id {
			t.Errorf("the ids are %q and %q", id, other)
		}
	})
	t.Run("row lifecycle/sandbox/image", func(t *testing.T) {
		if image, _ := got["image"].(map[string]any); image["uri"] != busyboxImage {
			t.Errorf("image is %v", got["image"])
		}
		if _, told := created["image"]; told {
			t.Error("the answer to the creation has an image")
		}
	})
	t.Run("row lifecycle/sandbox/status", func(t *testing.T) {
		for _, field := range []string{"state", "reason", "message", "lastTransitionAt"} {
			object(status).text(t, field)
		}
	})
	t.Run("row lifecycle/sandbox/metadata", func(t *testing.T) {
		if m, _ := got["metadata"].(map[string]any); m["name"] != "a label" || m["team"] != "red" {
			t.Errorf("metadata is %v", got["metadata"])
		}
	})
	t.Run("row lifecycle/sandbox/entrypoint", func(t *testing.T) {
		if list, _ := got["entrypoint"].([]any); !slices.Equal(list, []any{"sleep", "1000"}) {
			t.Errorf("entrypoint is %v", got["entrypoint"])
		}
	})
	t.Run("row lifecycle/sandbox/expiresAt", func(t *testing.T) {
		if lives := got.time(t, "expiresAt").Sub(got.time(t, "createdAt")); lives != 600*time.Second {
			t.Errorf("it lives for %v", lives)
		}
	})
	t.Run("row lifecycle/sandbox/createdAt", func(t *testing.T) {
		if age := time.Since(got.time(t, "createdAt")); age < -time.Minute || age > time.Hour {
			t.Errorf("it was created %v ago", age)
		}
	})
	t.Run("row lifecycle/sandbox/updatedAt", func(t *testing.T) {
		if _, told := created["updatedAt"]; told {
			t.Error("the answer to the creation has an updatedAt")
		}
	})
	t.Run("row lifecycle/status/state", func(t *testing.T) {
		if state := object(status).text(t, "state"); state != "Running" {
			t.Errorf("state is %s", state)
		}
	})
	t.Run("row lifecycle/status/reason", func(t *testing.T) {
		if reason := object(status).text(t, "reason"); reason != "CONTAINER_RUNNING" {
			t.Errorf("reason is %s", reason)
		}
	})
	t.Run("row lifecycle/status/message", func(t *testing.T) {
		if message := object(status).text(t, "message"); message == "" {
			t.Error("there is no message")
		}
	})
	t.Run("row lifecycle/status/lastTransitionAt", func(t *testing.T) {
		if at := object(status).time(t, "lastTransitionAt"); at.Before(got.time(t, "createdAt").Add(-time.Second)) {
			t.Errorf("the last transition was at %v, the creation at %v", at, got["createdAt"])
		}
	})
}

func TestRowsOfCreation(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	r := idle()
	r.Env = lifecycle.Env{"COLOUR": "red"}
	r.Extensions = json.RawMessage(`{"example.key": [1.0, "two"]}`)
	cpu, memory := "500m", "128Mi"
	r.ResourceLimits = lifecycle.ResourceLimits{CPU: &cpu, Memory: &memory}
	id := s.running(t, r)
	inside := s.enter(t, id)

	t.Run("row lifecycle/create/image", func(t *testing.T) {
		s.refuse(t, fields{"image": nil}, "image", "required")
		s.refuse(t, fields{"image": fields{"uri": "a", "auth": fields{"username": "u"}}}, "image/auth/password", "required")
	})
	t.Run("row lifecycle/create/timeout", func(t *testing.T) {
		for _, timeout := range []any{nil, 59, 86401} {
			s.refuse(t, fields{"timeout": timeout}, "timeout")
		}
		for _, timeout := range []int{60, 86400} {
			got := objectOf(t, s.accept(t, fields{"timeout": timeout}))
			if lives := got.time(t, "expiresAt").Sub(got.time(t, "createdAt")); lives != time.Duration(timeout)*time.Second {
				t.Errorf("with timeout %d it lives for %v", timeout, lives)
			}
		}
	})
	t.Run("row lifecycle/create/resourceLimits", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": nil}, "resourceLimits", "required")
		s.refuse(t, fields{"resourceLimits": fields{"cpu": 1}}, "resourceLimits/cpu", "string")
	})
	t.Run("row lifecycle/create/entrypoint", func(t *testing.T) {
		s.refuse(t, fields{"entrypoint": nil}, "entrypoint", "required")
		s.refuse(t, fields{"entrypoint": []string{}}, "entrypoint")
		inside.want(t, "tr '\\0' ' ' </proc/1/cmdline | grep -c 'sleep 1000'", "1\n")
	})
	t.Run("row lifecycle/create/env", func(t *testing.T) { inside.want(t, "echo $COLOUR", "red\n") })
	t.Run("row lifecycle/create/metadata", func(t *testing.T) {
		s.refuse(t, fields{"metadata": fields{"team": 1}}, "metadata/team", "string")
		got := objectOf(t, s.accept(t, fields{"metadata": fields{"team": "red"}}))
		if m, _ := got["metadata"].(map[string]any); m["team"] != "red" {
			t.Errorf("metadata is %v", got["metadata"])
		}
	})
	t.Run("row lifecycle/create/extensions", func(t *testing.T) {
		if got := s.send(t, http.MethodGet, "/v1/sandboxes/"+id, ""); !strings.Contains(got.body, `{"example.key": [1.0, "two"]}`) &&
			!strings.Contains(got.body, `{"example.key":[1.0,"two"]}`) {
			t.Errorf("the extensions came back otherwise: %s", got)
		}
	})
	t.Run("row lifecycle/resourceLimits/cpu", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": fields{"cpu": "500"}}, "resourceLimits.cpu", "500m")
		if got := s.enterMetrics(t, inside)["cpu_count"]; got != 0.5 {
			t.Errorf("with 500m the sandbox has %v cores", got)
		}
	})
	t.Run("row lifecycle/resourceLimits/memory", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": fields{"memory": "512"}}, "resourceLimits.memory", "512Mi")
		if got := s.enterMetrics(t, inside)["mem_total_mib"]; got != 128.0 {
			t.Errorf("with 128Mi the sandbox has %v MiB", got)
		}
	})
	t.Run("row lifecycle/resourceLimits/gpu", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": fields{"gpu": "some"}}, "resourceLimits/gpu")
		// What happens where there is none: a clear end, not a sandbox without what was asked for.
		id := objectOf(t, s.accept(t, fields{"resourceLimits": fields{"gpu": "1"}})).text(t, "id")
		if got := s.await(t, id, "Failed").Status; !strings.Contains(strings.ToLower(got.Message), "gpu") {
			t.Errorf("a sandbox with a GPU on a machine without ended with %s: %s", got.Reason, got.Message)
		}
	})
	t.Run("row lifecycle/versioning/rule 1", func(t *testing.T) {
		document, err := lifecycleContract()
		if err != nil {
			t.Fatal(err)
		}
		for path := range document.Paths.Map() {
			if path != "/health" && path != "/metrics" && !strings.HasPrefix(path, "/v1/") {
				t.Errorf("%s is not under /v1", path)
			}
		}
	})
}

// enterMetrics returns what the sandbox says of its own resources.
func (s *service) enterMetrics(t *testing.T, inside *box) object {
	t.Helper()
	response, err := inside.client.GetMetricsWithResponse(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got object
	if err := json.Unmarshal(response.Body, &got); err != nil {
		t.Fatalf("%s: %v", response.Body, err)
	}
	return got
}

func TestRowsOfListing(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	red := objectOf(t, s.accept(t, fields{"metadata": fields{"team": "red & co", "n": "1"}})).text(t, "id")
	blue := objectOf(t, s.accept(t, fields{"metadata": fields{"team": "blue", "n": "1"}})).text(t, "id")
	s.await(t, red, "Running")
	s.await(t, blue, "Running")
	s.pause(t, blue)
	s.await(t, blue, "Paused")
	want := func(t *testing.T, query string, want ...string) {
		t.Helper()
		if got := ids(s.page(t, query).Items); !slices.Equal(got, want) {
			t.Errorf("%s lists %q, want %q", query, got, want)
		}
	}
	t.Run("row lifecycle/list/items", func(t *testing.T) {
		if items, _ := s.fetch(t, "/v1/sandboxes")["items"].([]any); len(items) != 2 {
			t.Errorf("items are %v", items)
		}
	})
	t.Run("row lifecycle/list/pagination", func(t *testing.T) {
		got, _ := s.fetch(t, "/v1/sandboxes?pageSize=1")["pagination"].(map[string]any)
		for field, want := range fields{"page": 1.0, "pageSize": 1.0, "totalItems": 2.0, "totalPages": 2.0, "hasNextPage": true} {
			if got[field] != want {
				t.Errorf("%s is %v, want %v", field, got[field], want)
			}
		}
	})
	t.Run("row lifecycle/query/state", func(t *testing.T) {
		want(t, "state=Running", red)
		want(t, "state=Running&state=Paused", blue, red)
	})
	t.Run("row lifecycle/query/metadata", func(t *testing.T) {
		want(t, "metadata="+url.QueryEscape("team="+url.QueryEscape("red & co")+"&n=1"), red)
	})
	t.Run("row lifecycle/query/page", func(t *testing.T) {
		want(t, "page=1&pageSize=1", blue)
		want(t, "page=2&pageSize=1", red)
		wantProblem(t, s.send(t, http.MethodGet, "/v1/sandboxes?page=0", ""), 400, "INVALID_REQUEST_BODY", "page", "1")
		if got := s.page(t, "").Pagination.Page; got != 1 {
			t.Errorf("the default is %d", got)
		}
	})
	t.Run("row lifecycle/query/pageSize", func(t *testing.T) {
		wantProblem(t, s.send(t, http.MethodGet, "/v1/sandboxes?pageSize=0", ""), 400, "INVALID_REQUEST_BODY", "pageSize", "1")
		if got := s.page(t, "").Pagination.PageSize; got != 20 {
			t.Errorf("the default is %d", got)
		}
	})
	t.Run("row lifecycle/query/filters", func(t *testing.T) {
		want(t, "state=Paused&metadata=n%3D1", blue)
		want(t, "state=Paused&metadata=team%3Dgreen")
	})
}

func TestRowsOfAuthentication(t *testing.T) {
	t.Parallel()
	s := start(t, plan{keys: []config.Key{
		{Name: "user", SHA256: digest(userKey), Role: config.RoleUser},
		{Name: "other", SHA256: digest(otherKey), Role: config.RoleUser},
	}})
	nobody := s.as(t, "")
	t.Run("row lifecycle/authentication/rule 1", func(t *testing.T) {
		if got := s.send(t, http.MethodGet, "/v1/sandboxes", ""); got.status != http.StatusOK {
			t.Errorf("with the key: %s", got)
		}
	})
	t.Run("row lifecycle/authentication/rule 2", func(t *testing.T) {
		for _, path := range []string{"/health", "/docs", "/redoc"} {
			if got := nobody.send(t, http.MethodGet, path, ""); got.status != http.StatusOK {
				t.Errorf("%s without a key: %d", path, got.status)
			}
		}
		if got := start(t, plan{open: true}).as(t, "").send(t, http.MethodGet, "/v1/sandboxes", ""); got.status != http.StatusOK {
			t.Errorf("where no key is configured: %s", got)
		}
	})
	t.Run("row lifecycle/authentication/rule 3", func(t *testing.T) {
		wantProblem(t, nobody.send(t, http.MethodGet, "/v1/sandboxes", ""), 401, "UNAUTHORIZED", keyHeader)
		wantProblem(t, s.as(t, "wrong").send(t, http.MethodGet, "/v1/sandboxes", ""), 401, "UNAUTHORIZED", keyHeader)
	})
	t.Run("row lifecycle/authentication/rule 4", func(t *testing.T) {
		rotated := start(t, plan{settings: ""})
		if lines := rotated.log.with("shorter than 32"); len(lines) > 0 {
			t.Errorf("a key of %d characters is called short: %s", len(adminKey), lines)
		}
	})
	t.Run("row lifecycle/authentication/rule 5", func(t *testing.T) {
		id := s.as(t, userKey).create(t, idle())
		wantProblem(t, s.as(t, otherKey).send(t, http.MethodGet, "/v1/sandboxes/"+id, ""), 403, "FORBIDDEN")
	})
}
