package compat_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/compat"
	"sandbox.internal/server/lifecycle"
)

const sandboxPath = "/v1/sandboxes/" + id

func read(t *testing.T, response *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// in is a sandbox in a state.
func in(state lifecycle.State, reason lifecycle.Reason) string {
	return `200 {"id":"` + id + `","image":{"uri":"a"},"status":{"state":"` + string(state) + `","reason":"` + string(reason) + `","message":"why"},"runtimeClass":"x"}`
}

// TestEnded: what has ended, or is about to, is gone for every request.
func TestEnded(t *testing.T) {
	for _, state := range []lifecycle.State{lifecycle.StateStopping, lifecycle.StateTerminated, lifecycle.StateFailed} {
		for _, target := range []string{
			"GET ", "DELETE ", "POST /pause", "POST /resume", "PATCH /metadata", "POST /renew-expiration", "GET /networkpolicy", "PUT /networkpolicy",
			"GET /endpoints/8000", "GET /diagnostics/logs", "GET /diagnostics/summary",
		} {
			if state == lifecycle.StateFailed && strings.Contains(target, "/diagnostics/") {
				continue // they say why
			}
			method, path, _ := strings.Cut(target, " ")
			s := &service{t: t, answers: map[string]string{"GET " + sandboxPath: in(state, lifecycle.ReasonExpired)}}
			for _, other := range []string{
				"DELETE ", "POST /pause", "POST /resume", "PATCH /metadata", "POST /renew-expiration", "GET /network-policy", "PUT /network-policy", "GET /endpoints/8000",
			} {
				m, p, _ := strings.Cut(other, " ")
				s.answers[m+" "+sandboxPath+p] = `409 {"code":"CONFLICT","message":"ended","detail":"ended"}`
			}
			response := s.ask(method+" "+sandboxPath+path, `{"expiresAt":"2026-01-03T15:04:06Z"}`, "Content-Type: application/json")
			if body := read(t, response); response.StatusCode != 404 || !strings.Contains(body, `{"code":"DOCKER::SANDBOX_NOT_FOUND","message":`) {
				t.Errorf("%s of one that is %s: %d %s", target, state, response.StatusCode, body)
			}
		}
	}
}

// TestDelete: a removal is awaited, so that nothing of it is there any more when it is answered.
func TestDelete(t *testing.T) {
	s := &service{t: t, answers: map[string]string{"GET " + sandboxPath: in(lifecycle.StateRunning, ""), "DELETE " + sandboxPath: "204 "}}
	if response := s.ask("DELETE /sandboxes/"+id, ""); response.StatusCode != 204 || s.headers[1].Get("Prefer") != "wait=10" {
		t.Errorf("%s, %v", response.Status, s.headers)
	}
}

// TestCreateWaits: a create is answered when the sandbox runs, and with an error when it cannot.
func TestCreateWaits(t *testing.T) {
	for name, c := range map[string]struct {
		state  lifecycle.State
		reason lifecycle.Reason
		status int
		want   string
	}{
		"runs":          {lifecycle.StateRunning, lifecycle.ReasonContainerRunning, 202, `{"id":"` + id + `","status":{"state":"Running","reason":"CONTAINER_RUNNING","message":"why"}}`},
		"takes long":    {lifecycle.StatePending, lifecycle.ReasonImagePulling, 202, `{"id":"` + id + `","status":{"state":"Pending","reason":"IMAGE_PULLING","message":"why"}}`},
		"no image":      {lifecycle.StateFailed, lifecycle.ReasonImagePullError, 500, `{"code":"DOCKER::SANDBOX_IMAGE_PULL_FAILED","message":"why"}`},
		"no start":      {lifecycle.StateFailed, lifecycle.ReasonContainerError, 500, `{"code":"DOCKER::SANDBOX_START_FAILED","message":"why"}`},
		"ended already": {lifecycle.StateFailed, lifecycle.ReasonEntrypointExited, 202, `{"id":"` + id + `","status":{"state":"Failed","reason":"ENTRYPOINT_EXITED","message":"why"}}`},
	} {
		s := &service{t: t, answers: map[string]string{"POST /v1/sandboxes": `202 {"id":"` + id + `"}`, "GET " + sandboxPath: in(c.state, c.reason)}}
		response := s.ask("POST /sandboxes", `{"timeout":60}`, "Content-Type: application/json")
		if body := read(t, response); response.StatusCode != c.status || !sameJSON("1 "+body, "1 "+c.want) {
			t.Errorf("%s: %d %s, want %d %s", name, response.StatusCode, body, c.status, c.want)
		}
		if s.headers[0].Get("Prefer") != "wait=25" {
			t.Errorf("%s: the service was not asked to wait: %v", name, s.headers[0])
		}
	}
}

// TestCreateBody: what a client asks for becomes what the service has, and what would have no
// effect is refused by its name.
func TestCreateBody(t *testing.T) {
	platform := `{"os":"Linux","arch":"` + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH] + `"}`
	for name, c := range map[string]struct {
		cluster           bool
		body, asked, want string // the service is asked, or the request is refused with a text
	}{
		"settings of daemon and sidecar": {body: `"env":{"A":"b","EXECD_X":"1","EXECD_ACCESS_TOKEN":"t","EXECD_API_GRACE_SHUTDOWN":"3s","EXECD_LOG_FILE":"/f","OPENSANDBOX_EGRESS_LOG_LEVEL":"debug"}`,
			asked: `"env":{"A":"b","EXECD_API_GRACE_SHUTDOWN":"3s","EXECD_LOG_FILE":"/f"}`},
		"rules of the sidecar": {body: `"env":{"OPENSANDBOX_EGRESS_RULES":"x"}`, want: "env.OPENSANDBOX_EGRESS_RULES: "},
		"hooks":                {body: `"env":{"OPENSANDBOX_LIFECYCLE":"x"}`, want: "env.OPENSANDBOX_LIFECYCLE: "},
		"reserved metadata":    {body: `"metadata":{"opensandbox.io/expires-at":"never"}`, want: "metadata: key \"opensandbox.io/expires-at\": "},
		"pool":                 {body: `"extensions":{"poolRef":"a"}`, want: "extensions.poolRef: "},
		"pool on a cluster":    {cluster: true, body: `"extensions":{"poolRef":"a"}`, asked: `"extensions":{"poolRef":"a"}`},
		"renewal by access":    {cluster: true, body: `"extensions":{"access.renew.extend.seconds":"300"}`, want: "extensions.access.renew.extend.seconds: "},
		"platform":             {body: `"platform":` + platform, asked: `"metadata":{"opensandbox.io/platform":"linux/` + runtime.GOARCH + `"}`},
		"another platform":     {body: `"platform":{"os":"linux","arch":"s390x"}`, want: "platform: "},
		"half a platform":      {body: `"platform":{"os":"linux","arch":null}`, want: "platform: "},
		"platform of a node":   {cluster: true, body: `"platform":` + platform, want: "platform: "},
		"requests":             {body: `"resourceLimits":{"memory":"512mb","cpu":"1"},"resourceRequests":{"cpu":"100m"}`, asked: `"resourceLimits":{"cpu":"1","memory":"512M"}`},
		"requests on a cluster": {cluster: true, body: `"resourceRequests":{"cpu":null,"memory":"67108864"}`,
			asked: `"resourceRequests":{"memory":"65536Ki"}`},
		"requests that are none": {body: `"resourceRequests":[1]`, want: "resourceRequests: "},
		"gpu":                    {body: `"resourceLimits":{"gpu":"all","memory":"1gi"}`, asked: `"resourceLimits":{"gpu":"all","memory":"1Gi"}`},
	} {
		s := &service{t: t, answers: map[string]string{"GET /v1/version": "200 {}"}}
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/sandboxes", strings.NewReader(`{`+c.body+`,"timeout":60}`))
		r.Header.Set("OPEN-SANDBOX-API-KEY", "key")
		recorder := httptest.NewRecorder()
		compat.New(compat.Options{Next: s, Admits: s.admits, Cluster: c.cluster, Logger: zerolog.Nop()}).ServeHTTP(recorder, r)
		if want := "POST /v1/sandboxes {" + c.asked + `,"timeout":60}`; c.want == "" && s.asked[0] != want {
			t.Errorf("%s: the service was asked\n%s, want\n%s", name, s.asked[0], want)
		}
		var refused struct{ Message string }
		if err := json.Unmarshal(recorder.Body.Bytes(), &refused); c.want != "" && (recorder.Code != 400 || err != nil || !strings.HasPrefix(refused.Message, c.want) || len(s.asked) != 1) {
			t.Errorf("%s: %d %s, want 400 %s", name, recorder.Code, recorder.Body, c.want)
		}
	}
}

// TestProblems: an error has their fields, codes and header, and the answer of a program in a
// sandbox stays as it is.
func TestProblems(t *testing.T) {
	const refusal = `401 {"code":"UNAUTHORIZED","message":"header SERVICE-API-KEY: is required","detail":"d"}`
	for name, c := range map[string]struct {
		target  string
		header  []string
		service map[string]string
		want    string
	}{
		"no key": {"GET /sandboxes", []string{"OPEN-SANDBOX-API-KEY: "}, map[string]string{"GET /v1/sandboxes": refusal},
			`{"code":"MISSING_API_KEY","message":"header OPEN-SANDBOX-API-KEY: is required"}`},
		"a wrong key": {"DELETE " + sandboxPath, []string{"OPEN-SANDBOX-API-KEY: wrong"}, map[string]string{"DELETE " + sandboxPath: refusal},
			`{"code":"INVALID_API_KEY","message":"header OPEN-SANDBOX-API-KEY: is required"}`},
		"another client without a key": {"GET /v1/sandboxes", []string{"OPEN-SANDBOX-API-KEY: "}, map[string]string{"GET /v1/sandboxes": refusal},
			`{"code":"UNAUTHORIZED","message":"header SERVICE-API-KEY or OPEN-SANDBOX-API-KEY: is required","detail":"header SERVICE-API-KEY or OPEN-SANDBOX-API-KEY: is required"}`},
		"a port":                    {"GET " + sandboxPath + "/proxy/8000/", nil, map[string]string{"GET " + sandboxPath + "/proxy/8000/": refusal}, refusal[4:]},
		"a port, without a version": {"GET /sandboxes/" + id + "/proxy/8000/", nil, map[string]string{"GET " + sandboxPath + "/proxy/8000/": refusal}, refusal[4:]},
		"another path":              {"GET /v1/templates", nil, map[string]string{"GET /v1/templates": `404 {"code":"NOT_FOUND","message":"m","detail":"m"}`}, `{"code":"NOT_FOUND","message":"m"}`},
		"no JSON":                   {"GET /v1/templates", nil, map[string]string{"GET /v1/templates": `502 oops`}, `oops`},
		"a failure":                 {"GET " + sandboxPath, nil, map[string]string{"GET " + sandboxPath: `500 {"code":"INTERNAL_ERROR","message":"m"}`}, `{"code":"SANDBOX::INTERNAL_ERROR","message":"m"}`},
	} {
		s := &service{t: t, answers: c.service}
		if got := read(t, s.ask(c.target, "", c.header...)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// feed has events.
type feed struct{ events []lifecycle.Event }

func (f feed) Next(ctx context.Context) (lifecycle.EventBatch, error) {
	return lifecycle.EventBatch{Events: f.events}, ctx.Err()
}
func (feed) Close() {}

// witness is a backend with events.
type witness struct {
	backend
	feed feed
}

func (w *witness) Events(context.Context, lifecycle.EventSelection) (lifecycle.EventFeed, error) {
	return w.feed, nil
}

// TestDiagnostics: the log and the events of a sandbox, as descriptors and as text.
func TestDiagnostics(t *testing.T) {
	var events []lifecycle.Event
	for i := range 60 {
		events = append(events, lifecycle.Event{Type: lifecycle.EventRenewed, Time: now, ExpiresAt: now.Add(time.Duration(i) * time.Minute)})
	}
	events = append(events,
		lifecycle.Event{Type: lifecycle.EventMetadata, Time: now},
		lifecycle.Event{Type: lifecycle.EventState, Time: now, To: lifecycle.StateFailed, Reason: lifecycle.ReasonOOMKilled, Message: "out of memory\nits log"})
	s := &service{t: t, answers: map[string]string{
		"GET " + sandboxPath:           in(lifecycle.StateFailed, lifecycle.ReasonOOMKilled),
		"GET " + sandboxPath + "/logs": "200 " + strings.Repeat("line\n", 100) + "last <&> \xff\n",
		"GET /v1/version":              "200 {}",
	}}
	edge := compat.New(compat.Options{Next: s, Admits: s.admits, Backend: &witness{feed: feed{events}}, Logger: zerolog.Nop(), Clock: func() time.Time { return now }})
	ask := func(path string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/sandboxes/"+id+"/diagnostics/"+path, nil)
		r.Header.Set("OPEN-SANDBOX-API-KEY", "key")
		recorder := httptest.NewRecorder()
		edge.ServeHTTP(recorder, r)
		if recorder.Header().Get("X-Request-Id") != "r1" {
			t.Errorf("%s has no X-Request-ID", path)
		}
		return recorder
	}
	var found struct {
		Content       string
		ContentLength int
		Truncated     bool
		Warnings      []string
	}
	decode := func(path string) {
		if err := json.Unmarshal(ask(path).Body.Bytes(), &found); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	decode("logs?scope=container&tail=1") // tail is of the requests without a scope
	if lines := strings.Split(found.Content, "\n"); len(lines) != 101 || lines[99] != "last <&> \uFFFD" || !found.Truncated || found.ContentLength != len(found.Content) {
		t.Errorf("the log: %d lines, %+v", len(lines), found)
	}
	decode("events?scope=all")
	if lines := strings.Split(found.Content, "\n"); len(lines) != 50 || !strings.HasSuffix(lines[49], " runtime Warning Failed OOM_KILLED out of memory") || !found.Truncated || len(found.Warnings) != 1 {
		t.Errorf("the events: %+v", found)
	}
	for path, want := range map[string]string{
		"logs?tail=1": "last", "logs?tail=1&since=5m": "last", "events?limit=1": "OOM_KILLED", "inspect": "Status:         Failed", "summary?tail=1&event_limit=1": "LOGS (last 1 lines)",
	} {
		got := ask(path)
		if got.Code != 200 || !strings.Contains(got.Body.String(), want) || !strings.HasPrefix(got.Header().Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %d %s", path, got.Code, got.Body)
		}
	}
	if asked := strings.Join(s.asked, "\n"); !strings.Contains(asked, "/logs?since=2026-01-02T14%3A59%3A05Z&tail=2") {
		t.Errorf("the service was asked\n%s", asked)
	}
	for path, want := range map[string]string{
		"logs?scope=network": "DIAGNOSTICS_SCOPE_UNSUPPORTED", "events?scope=": "DIAGNOSTICS_SCOPE_UNSUPPORTED", "logs?tail=0": "query/tail: ", "events?limit=501": "query/limit: ", "summary?event_limit=x": "query/event_limit: ",
	} {
		if got := ask(path); got.Code != 400 || !strings.Contains(got.Body.String(), want) {
			t.Errorf("%s: %d %s, want 400 %s", path, got.Code, got.Body, want)
		}
	}
}
