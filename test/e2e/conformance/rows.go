package conformance

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/config"
)

// The tests of this and the other rows_*.go files follow the document's tables row by row;
// test/e2e/coverage holds their names against the document. Each shows what its row promises; what
// can go wrong is tested elsewhere.

// object is a JSON object whose fields a test checks one by one.
type object map[string]any

func objectOf(t *testing.T, a Answer) object {
	t.Helper()
	got, err := Decode[object](a)
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
func (c *Client) accept(t *testing.T, change map[string]any) Answer {
	t.Helper()
	got := c.Send(t, http.MethodPost, "/v1/sandboxes", c.Body(t, change))
	if got.Status != http.StatusAccepted {
		t.Fatalf("create: %s", got)
	}
	return got
}

func (c *Client) fetch(t *testing.T, path string) object {
	t.Helper()
	return objectOf(t, c.Send(t, http.MethodGet, path, ""))
}

func (c *Client) refuse(t *testing.T, change map[string]any, words ...string) {
	t.Helper()
	WantProblem(t, c.Send(t, http.MethodPost, "/v1/sandboxes", c.Body(t, change)), 400,
		"INVALID_REQUEST_BODY", words...)
}

type fields = map[string]any

func testRowsOfSandboxes(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	created := objectOf(t,
		s.accept(t, fields{"metadata": fields{"name": "a label", "team": "red"}}))
	id := created.text(t, "id")
	s.Await(t, id, "Running")
	got := s.fetch(t, "/v1/sandboxes/"+id)
	status, _ := got["status"].(map[string]any)
	t.Run("row lifecycle/sandbox/id", func(t *testing.T) {
		if other := s.Create(t, s.Idle()); id == "" || other == id || got.text(t, "id") != id {
			t.Errorf("the ids are %q and %q", id, other)
		}
	})
	t.Run("row lifecycle/sandbox/image", func(t *testing.T) {
		if image, _ := got["image"].(map[string]any); image["uri"] != s.Images.Busybox {
			t.Errorf("image is %v", got["image"])
		}
		if _, present := created["image"]; present {
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
		if lives := got.time(t,
			"expiresAt").Sub(got.time(t, "createdAt")); lives != Lifetime() {
			t.Errorf("the sandbox is to last %v", lives)
		}
	})
	t.Run("row lifecycle/sandbox/createdAt", func(t *testing.T) {
		if age := time.Since(got.time(t, "createdAt")); age < -time.Minute || age > time.Hour {
			t.Errorf("the sandbox was created %v ago", age)
		}
	})
	t.Run("row lifecycle/sandbox/updatedAt", func(t *testing.T) {
		if _, present := created["updatedAt"]; present {
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
		if at := object(status).time(t,
			"lastTransitionAt"); at.Before(got.time(t, "createdAt").Add(-time.Second)) {
			t.Errorf("the last transition was at %v, the creation at %v", at, got["createdAt"])
		}
	})
}

func testRowsOfCreation(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	r := s.Idle()
	r.Env = lifecycle.Env{"COLOUR": "red"}
	r.Extensions = json.RawMessage(`{"example.key": [1.0, "two"]}`)
	cpu, memory := "500m", "128Mi"
	r.ResourceLimits = &lifecycle.ResourceLimits{CPU: &cpu, Memory: &memory}
	id := s.Running(t, r)
	inside := s.Enter(t, id)

	t.Run("row lifecycle/create/image", func(t *testing.T) {
		s.refuse(t, fields{"image": nil}, "image", "required")
		s.refuse(t, fields{"image": fields{"uri": "a", "auth": fields{"username": "u"}}},
			"image/auth/password", "required")
	})
	t.Run("row lifecycle/create/timeout", func(t *testing.T) {
		for _, timeout := range []any{nil, 59, 86401} {
			s.refuse(t, fields{"timeout": timeout}, "timeout")
		}
		for _, timeout := range []int{60, 86400} {
			got := objectOf(t, s.accept(t, fields{"timeout": timeout}))
			if lives := got.time(t,
				"expiresAt").Sub(got.time(t,
				"createdAt")); lives != time.Duration(timeout)*time.Second {
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
		inside.Want(t,
			`for p in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$p; echo; done 2>/dev/null | grep -cx 'sleep 1000 '`, "1\n")
	})
	t.Run("row lifecycle/create/env",
		func(t *testing.T) { inside.Want(t, "echo $COLOUR", "red\n") })
	t.Run("row lifecycle/create/metadata", func(t *testing.T) {
		s.refuse(t, fields{"metadata": fields{"team": 1}}, "metadata/team", "string")
		got := objectOf(t, s.accept(t, fields{"metadata": fields{"team": "red"}}))
		if m, _ := got["metadata"].(map[string]any); m["team"] != "red" {
			t.Errorf("metadata is %v", got["metadata"])
		}
	})
	t.Run("row lifecycle/create/extensions", func(t *testing.T) {
		if got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+id, ""); !strings.Contains(got.Body,
			`{"example.key": [1.0, "two"]}`) &&
			!strings.Contains(got.Body, `{"example.key":[1.0,"two"]}`) {
			t.Errorf("the extensions came back otherwise: %s", got)
		}
	})
	t.Run("row lifecycle/resourceLimits/cpu", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": fields{"cpu": "500"}}, "resourceLimits.cpu", "500m")
		if got := s.enterMetrics(t, inside)["cpu_count"]; got != 0.5 && !s.backend.OwnKernel {
			t.Errorf("with 500m the sandbox has %v cores", got)
		}
	})
	t.Run("row lifecycle/resourceLimits/memory", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": fields{"memory": "512"}}, "resourceLimits.memory",
			"512Mi")
		if got := s.enterMetrics(t, inside)["mem_total_mib"]; got != 128.0 && !s.backend.OwnKernel {
			t.Errorf("with 128Mi the sandbox has %v MiB", got)
		}
	})
	t.Run("row lifecycle/resourceLimits/gpu", func(t *testing.T) {
		s.refuse(t, fields{"resourceLimits": fields{"gpu": "some"}}, "resourceLimits/gpu")
	})
	t.Run("row lifecycle/versioning/rule 1", func(t *testing.T) {
		document, err := LifecycleContract()
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
func (s *Service) enterMetrics(t *testing.T, inside *Box) object {
	t.Helper()
	response, err := inside.Client.GetMetricsWithResponse(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got object
	if err := json.Unmarshal(response.Body, &got); err != nil {
		t.Fatalf("%s: %v", response.Body, err)
	}
	return got
}

func testRowsOfListing(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	red := objectOf(t,
		s.accept(t, fields{"metadata": fields{"team": "red & co", "n": "1"}})).text(t, "id")
	blue := objectOf(t, s.accept(t, fields{"metadata": fields{"team": "blue", "n": "1"}})).text(t,
		"id")
	s.Await(t, red, "Running")
	s.Await(t, blue, "Running")
	s.Pause(t, blue)
	newest := newestFirst(s.Get(t, red), s.Get(t, blue))
	want := func(t *testing.T, query string, want ...string) {
		t.Helper()
		if got := IDs(s.page(t, query).Items); !slices.Equal(got, want) {
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
		for field, want := range map[string]any{"page": 1.0, "pageSize": 1.0, "totalItems": 2.0,
			"totalPages": 2.0, "hasNextPage": true} {
			if got[field] != want {
				t.Errorf("%s is %v, want %v", field, got[field], want)
			}
		}
	})
	t.Run("row lifecycle/query/state", func(t *testing.T) {
		want(t, "state=Running", red)
		want(t, "state=Running&state=Paused", newest...)
	})
	t.Run("row lifecycle/query/metadata", func(t *testing.T) {
		want(t, "metadata="+url.QueryEscape("team="+url.QueryEscape("red & co")+"&n=1"), red)
	})
	t.Run("row lifecycle/query/page", func(t *testing.T) {
		want(t, "page=1&pageSize=1", newest[0])
		want(t, "page=2&pageSize=1", newest[1])
		WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes?page=0", ""), 400,
			"INVALID_REQUEST_BODY", "page", "1")
		if got := s.page(t, "").Pagination.Page; got != 1 {
			t.Errorf("the default is %d", got)
		}
	})
	t.Run("row lifecycle/query/pageSize", func(t *testing.T) {
		WantProblem(t, s.Send(t, http.MethodGet, "/v1/sandboxes?pageSize=0", ""), 400,
			"INVALID_REQUEST_BODY", "pageSize", "1")
		if got := s.page(t, "").Pagination.PageSize; got != 20 {
			t.Errorf("the default is %d", got)
		}
	})
	t.Run("row lifecycle/query/filters", func(t *testing.T) {
		want(t, "state=Paused&metadata=n%3D1", blue)
		want(t, "state=Paused&metadata=team%3Dgreen")
	})
}

func testRowsOfAuthentication(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Keys: []config.Key{
		{Name: "user", SHA256: Digest(userKey), Role: config.RoleUser},
		{Name: "other", SHA256: Digest(OtherKey), Role: config.RoleUser},
	}})
	anonymous := s.As(t, "")
	t.Run("row lifecycle/authentication/rule 1", func(t *testing.T) {
		if got := s.Send(t, http.MethodGet, "/v1/sandboxes", ""); got.Status != http.StatusOK {
			t.Errorf("with the key: %s", got)
		}
	})
	t.Run("row lifecycle/authentication/rule 2", func(t *testing.T) {
		for _, path := range []string{"/health", "/docs", "/redoc"} {
			if got := Fetch(t, s.URL+path); got.Status != http.StatusOK {
				t.Errorf("%s without a key: %d", path, got.Status)
			}
		}
		if got := Start(t, b, Plan{Open: true}).As(t, "").Send(t, http.MethodGet, "/v1/sandboxes",
			""); got.Status != http.StatusOK {
			t.Errorf("where no key is configured: %s", got)
		}
	})
	t.Run("row lifecycle/authentication/rule 3", func(t *testing.T) {
		WantProblem(t, anonymous.Send(t, http.MethodGet, "/v1/sandboxes", ""), 401, "UNAUTHORIZED",
			KeyHeader)
		WantProblem(t, s.As(t, "wrong").Send(t, http.MethodGet, "/v1/sandboxes", ""), 401,
			"UNAUTHORIZED", KeyHeader)
	})
	t.Run("row lifecycle/authentication/rule 5", func(t *testing.T) {
		id := s.As(t, userKey).Create(t, s.Idle())
		WantProblem(t, s.As(t, OtherKey).Send(t, http.MethodGet, "/v1/sandboxes/"+id, ""), 403,
			"FORBIDDEN")
	})
}

func testRowsOfVolumes(t *testing.T, b Backend) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	allowed := filepath.Join(root, "allowed")
	if err := os.MkdirAll(filepath.Join(allowed, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"note": "on the host\n", "below/note": "below\n"} {
		if err := os.WriteFile(filepath.Join(allowed, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := Start(t, b, Plan{Settings: "[storage]\nallowed_host_paths = [\"" + allowed + "\"]"})
	claim := b.Claim(t, s)
	mounted := objectOf(t, s.accept(t, fields{"volumes": []any{
		fields{"name": "plain", "mountPath": "/plain", "host": fields{"path": allowed}},
		fields{"name": "fixed", "mountPath": "/fixed", "readOnly": true,
			"host": fields{"path": allowed}},
		fields{"name": "part", "mountPath": "/part", "subPath": "below",
			"host": fields{"path": allowed}},
		fields{"name": "claimed", "mountPath": "/claimed", "pvc": fields{"claimName": claim}},
	}}))
	s.Await(t, mounted.text(t, "id"), "Running")
	inside := s.Enter(t, mounted.text(t, "id"))
	refuse := func(t *testing.T, volume fields, words ...string) {
		t.Helper()
		s.refuse(t, fields{"volumes": []any{volume}}, words...)
	}
	t.Run("row lifecycle/create/volumes",
		func(t *testing.T) { inside.Want(t, "ls -d /plain /claimed", "/claimed\n/plain\n") })
	t.Run("row lifecycle/volumes/name", func(t *testing.T) {
		refuse(t, fields{"name": "Not a name", "mountPath": "/a", "host": fields{"path": allowed}},
			"volumes[0].name")
	})
	t.Run("row lifecycle/volumes/mountPath", func(t *testing.T) {
		inside.Want(t, "cat /plain/note", "on the host\n")
		refuse(t, fields{"name": "a", "mountPath": "a", "host": fields{"path": allowed}},
			"volumes[0].mountPath", "absolute")
	})
	t.Run("row lifecycle/volumes/readOnly", func(t *testing.T) {
		if got := inside.Run(t, "echo x > /fixed/new"); got.Code == 0 {
			t.Error("a read-only volume was written to")
		}
		inside.Want(t, "echo x > /plain/new && cat /fixed/new", "x\n")
	})
	t.Run("row lifecycle/volumes/subPath",
		func(t *testing.T) { inside.Want(t, "cat /part/note", "below\n") })
	t.Run("row lifecycle/volumes/host",
		func(t *testing.T) { inside.Want(t, "cat /fixed/note", "on the host\n") })
	t.Run("row lifecycle/volumes/pvc",
		func(t *testing.T) {
			inside.Want(t, "echo kept > /claimed/note && cat /claimed/note",
				"kept\n")
		})
	outside := fields{"name": "a", "mountPath": "/a", "host": fields{"path": root}}
	t.Run("row lifecycle/volumes/allowed",
		func(t *testing.T) {
			refuse(t, outside, "volumes[0].host.path",
				"storage.allowed_host_paths")
		})
	t.Run("row lifecycle/configuration/storage.allowed_host_paths", func(t *testing.T) {
		if got := Start(t, b, Plan{}).accept(t,
			fields{"volumes": []any{outside}}); got.Status != http.StatusAccepted {
			t.Errorf("with an empty list: %s", got)
		}
	})
}

func testRowsOfNetworkPolicies(t *testing.T, b Backend) {
	s := Start(t, b, Plan{})
	t.Run("row lifecycle/create/networkPolicy", func(t *testing.T) {
		s.refuse(t, fields{"networkPolicy": fields{"defaultAction": "deny"}},
			"a network policy requires bridge mode and egress image configuration")
	})
	t.Run("row lifecycle/networkPolicy/empty", func(t *testing.T) {
		s.Await(t, objectOf(t, s.accept(t, nil)).text(t, "id"), "Running")
		// One that is there and empty is a policy, too, and nothing could enforce what becomes of
		// it later. Where there is a sidecar it allows everything, which the tests of egress show.
		s.refuse(t, fields{"networkPolicy": fields{}},
			"a network policy requires bridge mode and egress image configuration")
	})
}
