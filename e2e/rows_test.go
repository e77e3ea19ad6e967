package e2e_test

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
		for field, want := range map[string]any{"page": 1.0, "pageSize": 1.0, "totalItems": 2.0, "totalPages": 2.0, "hasNextPage": true} {
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
			if got := fetch(t, s.url+path); got.status != http.StatusOK {
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
	t.Run("row lifecycle/authentication/rule 5", func(t *testing.T) {
		id := s.as(t, userKey).create(t, idle())
		wantProblem(t, s.as(t, otherKey).send(t, http.MethodGet, "/v1/sandboxes/"+id, ""), 403, "FORBIDDEN")
	})
}

func TestRowsOfVolumes(t *testing.T) {
	t.Parallel()
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
	s := start(t, plan{settings: "[storage]\nallowed_host_paths = [\"" + allowed + "\"]"})
	claim := s.instance + "-claim"
	t.Cleanup(func() {
		s.deleteAll(t) // a volume in use cannot be removed
		dockerCLI(t, "volume", "rm", claim)
	})
	mounted := objectOf(t, s.accept(t, fields{"volumes": []any{
		fields{"name": "plain", "mountPath": "/plain", "host": fields{"path": allowed}},
		fields{"name": "fixed", "mountPath": "/fixed", "readOnly": true, "host": fields{"path": allowed}},
		fields{"name": "part", "mountPath": "/part", "subPath": "below", "host": fields{"path": allowed}},
		fields{"name": "claimed", "mountPath": "/claimed", "pvc": fields{"claimName": claim}},
	}}))
	s.await(t, mounted.text(t, "id"), "Running")
	inside := s.enter(t, mounted.text(t, "id"))
	refuse := func(t *testing.T, volume fields, words ...string) {
		t.Helper()
		s.refuse(t, fields{"volumes": []any{volume}}, words...)
	}
	t.Run("row lifecycle/create/volumes", func(t *testing.T) { inside.want(t, "ls -d /plain /claimed", "/claimed\n/plain\n") })
	t.Run("row lifecycle/volumes/name", func(t *testing.T) {
		refuse(t, fields{"name": "Not a name", "mountPath": "/a", "host": fields{"path": allowed}}, "volumes[0].name")
	})
	t.Run("row lifecycle/volumes/mountPath", func(t *testing.T) {
		inside.want(t, "cat /plain/note", "on the host\n")
		refuse(t, fields{"name": "a", "mountPath": "a", "host": fields{"path": allowed}}, "volumes[0].mountPath", "absolute")
	})
	t.Run("row lifecycle/volumes/readOnly", func(t *testing.T) {
		if got := inside.run(t, "echo x > /fixed/new"); got.code == 0 {
			t.Error("a read-only volume was written to")
		}
		inside.want(t, "echo x > /plain/new && cat /fixed/new", "x\n")
	})
	t.Run("row lifecycle/volumes/subPath", func(t *testing.T) { inside.want(t, "cat /part/note", "below\n") })
	t.Run("row lifecycle/volumes/host", func(t *testing.T) { inside.want(t, "cat /fixed/note", "on the host\n") })
	t.Run("row lifecycle/volumes/pvc", func(t *testing.T) { inside.want(t, "echo kept > /claimed/note && cat /claimed/note", "kept\n") })
	outside := fields{"name": "a", "mountPath": "/a", "host": fields{"path": root}}
	t.Run("row lifecycle/volumes/allowed", func(t *testing.T) { refuse(t, outside, "volumes[0].host.path", "storage.allowed_host_paths") })
	t.Run("row lifecycle/configuration/storage.allowed_host_paths", func(t *testing.T) {
		if got := start(t, plan{}).accept(t, fields{"volumes": []any{outside}}); got.status != http.StatusAccepted {
			t.Errorf("with an empty list: %s", got)
		}
	})
}

func TestRowsOfNetworkPolicies(t *testing.T) {
	t.Parallel()
	s := start(t, plan{})
	t.Run("row lifecycle/create/networkPolicy", func(t *testing.T) {
		s.refuse(t, fields{"networkPolicy": fields{"defaultAction": "deny"}}, "a network policy requires bridge mode and egress image configuration")
	})
	t.Run("row lifecycle/networkPolicy/empty", func(t *testing.T) {
		for _, change := range []fields{nil, {"networkPolicy": fields{}}} {
			s.await(t, objectOf(t, s.accept(t, change)).text(t, "id"), "Running")
		}
	})
}

func TestRowsOfConfiguration(t *testing.T) {
	t.Parallel()
	defaults := config.Default(os.Getenv)
	t.Run("row lifecycle/configuration/server.host", func(t *testing.T) {
		if defaults.Server.Host != "0.0.0.0" {
			t.Errorf("the default is %s", defaults.Server.Host)
		}
		s := start(t, plan{})
		if !strings.HasPrefix(s.url, "http://127.0.0.1:") {
			t.Errorf("with host 127.0.0.1 it listens at %s", s.url)
		}
	})
	t.Run("row lifecycle/configuration/server.port", func(t *testing.T) {
		if defaults.Server.Port != 8080 {
			t.Errorf("the default is %d", defaults.Server.Port)
		}
	})
	t.Run("row lifecycle/configuration/server.api_key", func(t *testing.T) {
		s := start(t, plan{})
		wantProblem(t, s.as(t, "").send(t, http.MethodGet, "/v1/sandboxes", ""), 401, "UNAUTHORIZED", keyHeader)
	})
	t.Run("row lifecycle/configuration/runtime.type", func(t *testing.T) {
		for _, settings := range []string{"[runtime]\nexecd_image = \"x\"\n", "[runtime]\ntype = \"podman\"\nexecd_image = \"x\"\n"} {
			file := filepath.Join(t.TempDir(), "sandbox.toml")
			if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := config.Load(file, os.Getenv); err == nil || !strings.Contains(err.Error(), "runtime.type") || !strings.Contains(err.Error(), "docker") {
				t.Errorf("%q: %v", settings, err)
			}
		}
	})
	t.Run("row lifecycle/configuration/runtime.execd_image", func(t *testing.T) {
		s := start(t, plan{})
		s.enter(t, s.running(t, idle())).want(t, "test -x /opt/sandbox/execd && echo there", "there\n")
	})
	t.Run("row lifecycle/configuration/docker.api_timeout", func(t *testing.T) {
		if got := defaults.Docker.APITimeout; got != 180 {
			t.Errorf("the default is %d s", got)
		}
	})
	t.Run("row lifecycle/configuration/docker.network_mode", func(t *testing.T) {
		if defaults.Docker.NetworkMode != config.NetworkBridge {
			t.Errorf("the default is %s", defaults.Docker.NetworkMode)
		}
		err := refusedStart(t, "[docker]\nnetwork_mode = \"overlay\"")
		if err == nil {
			t.Fatal("a third mode is let in")
		}
		contains(t, err.Error(), "docker.network_mode", "bridge", "host")
	})
	t.Run("row lifecycle/configuration/docker.host_ip", func(t *testing.T) {
		s := start(t, plan{settings: "[docker]\nhost_ip = \"127.0.0.2\""})
		if got := s.endpoint(t, s.running(t, idle()), daemonPort).Endpoint; !strings.HasPrefix(got, "127.0.0.2:") {
			t.Errorf("the endpoint is %s", got)
		}
	})
}
