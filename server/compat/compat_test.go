package compat_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/server/compat"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

const id = "5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11"

var now = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// service answers as the lifecycle service does, and keeps what it was asked.
type service struct {
	backend
	t       *testing.T
	answers map[string]string // "METHOD /path" to "STATUS BODY"
	asked   []string          // "METHOD /path?query BODY"
	headers []http.Header
	// How it is configured.
	open, hostNetwork bool
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	s.headers = append(s.headers, r.Header.Clone())
	if int64(len(body)) != r.ContentLength && r.ContentLength >= 0 {
		s.t.Errorf("%d bytes of body, announced are %d", len(body), r.ContentLength)
	}
	w.Header().Set("X-Request-ID", "r1")
	status, text := 404, `{"code":"SANDBOX_NOT_FOUND","message":"gone","detail":"gone"}`
	if answer, ok := s.answers[r.Method+" "+r.URL.Path]; ok {
		number, rest, _ := strings.Cut(answer, " ")
		if _, err := fmt.Sscan(number, &status); err != nil {
			s.t.Error(err)
		}
		text = rest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

func (s *service) admits(r *http.Request) bool {
	key := r.Header.Get("SERVICE-API-KEY")
	return key != "wrong" && (key != "" || s.open)
}

// ask sends a request as a client of OpenSandbox.
func (s *service) ask(target, body string, header ...string) *http.Response {
	method, path, _ := strings.Cut(target, " ")
	r := httptest.NewRequestWithContext(s.t.Context(), method, "http://api.test"+path, strings.NewReader(body))
	r.Header.Set("OPEN-SANDBOX-API-KEY", "key")
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Del(name)
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	recorder := httptest.NewRecorder()
	compat.New(compat.Options{Next: s, Admits: s.admits, Backend: s, HostNetwork: s.hostNetwork, Logger: zerolog.Nop(), Clock: func() time.Time { return now }}).ServeHTTP(recorder, r)
	return recorder.Result()
}

func sandbox(metadata, expiresAt string) string {
	return `{"id":"` + id + `","metadata":` + metadata + `,"expiresAt":"` + expiresAt + `"}`
}

// TestWrongKey: a request that the service will refuse is not read for translation.
func TestWrongKey(t *testing.T) {
	s := &service{t: t, answers: map[string]string{"POST /v1/sandboxes": "401 {}"}}
	s.ask("POST /v1/sandboxes", `{"env":{"A":null}}`, "OPEN-SANDBOX-API-KEY: wrong")
	if want := `POST /v1/sandboxes {"env":{"A":null}}`; len(s.asked) != 1 || s.asked[0] != want {
		t.Errorf("the service was asked %q, want %q", s.asked, want)
	}
	// What the service has no path for: it is asked about the key all the same.
	s = &service{t: t, answers: map[string]string{"GET /v1/version": "401 {}"}}
	answered := s.ask("POST /v1/metrics/events", `{}`, "OPEN-SANDBOX-API-KEY: wrong")
	if want := "GET /v1/version"; answered.StatusCode != 401 || len(s.asked) != 1 || s.asked[0] != want {
		t.Errorf("%s, and the service was asked %q, want %q", answered.Status, s.asked, want)
	}
}

// TestLargePage: a page of sandboxes that takes too much memory is refused by the name of the
// parameter that makes it smaller.
func TestLargePage(t *testing.T) {
	s := &service{t: t, answers: map[string]string{
		"GET /v1/sandboxes": `200 {"items":[{"metadata":{"a":"` + strings.Repeat("x", 17<<20) + `"}}]}`}}
	answered := s.ask("GET /v1/sandboxes", "")
	body, err := io.ReadAll(answered.Body)
	if err != nil || answered.StatusCode != 400 || !strings.Contains(string(body), "query/pageSize: ") {
		t.Errorf("%d %.100s %v, want 400 that names pageSize", answered.StatusCode, body, err)
	}
}

// TestEndpointBehindTLS: a reverse proxy reports that the client came with TLS, and the key must
// not go without.
func TestEndpointBehindTLS(t *testing.T) {
	path := "/v1/sandboxes/" + id
	for proto, want := range map[string]string{"": "http", "http": "http", "https": "https", "HTTPS": "https"} {
		s := &service{t: t, answers: map[string]string{"GET " + path + "/endpoints/8000": `200 {"endpoint":"e","url":"http://e","headers":{}}`}}
		var endpoint struct{ URL string }
		body := s.ask("GET "+path+"/endpoints/8000?use_server_proxy=true", "", "X-Forwarded-Proto: "+proto).Body
		if err := json.NewDecoder(body).Decode(&endpoint); err != nil || endpoint.URL != want+"://api.test"+path+"/proxy/8000" {
			t.Errorf("of a client of %q: %q, %v", proto, endpoint.URL, err)
		}
	}
}

func TestTranslation(t *testing.T) {
	const (
		path = "/v1/sandboxes/" + id
		far  = "2026-01-03T15:04:05Z"
		near = "2026-01-02T16:04:05Z"
	)
	get, metadata := "GET "+path, "PATCH "+path+"/metadata"
	missing := `404 {"code":"DOCKER::SANDBOX_NOT_FOUND","message":"sandbox \"` + id + `\" does not exist"}`
	plain, promised := sandbox(`{"a":"b"}`, far), sandbox(`{"a":"b","opensandbox.io/expires-at":"`+near+`"}`, far)
	endless := sandbox(`{"opensandbox.io/expires-at":"never"}`, far)
	endpoint := `200 {"endpoint":"10.0.0.1:40000/proxy/44772","url":"http://10.0.0.1:40000/proxy/44772","headers":{"X-EXECD-ACCESS-TOKEN":"t"}}`
	for name, c := range map[string]struct {
		target, body string
		answers      map[string]string
		asked        []string
		want         string // status and body
	}{
		"create": {"POST /v1/sandboxes",
			`{"image":{"uri":"a","auth":null},"timeout":60,"secureAccess":false,"platform":null,"env":{"A":"1","B":null},
			"credentialProxy":{"enabled":false},"networkPolicy":{"egress":[]},"extensions":{"x":null,"n":1e400,"t":"<"},
			"volumes":[{"name":"v","host":null,"pvc":{"claimName":"c","createIfNotExists":true,"deleteOnSandboxTermination":false,"storage":"1Gi","storageClass":null}}]}`,
			map[string]string{"POST /v1/sandboxes": "202 " + plain, get: "200 " + plain},
			[]string{`POST /v1/sandboxes {"env":{"A":"1"},"extensions":{"x":null,"n":1e400,"t":"<"},"image":{"uri":"a"},"networkPolicy":{"defaultAction":"deny","egress":[]},` +
				`"timeout":60,"volumes":[{"name":"v","pvc":{"claimName":"c"}}]}`, get},
			"202 " + plain},
		"create without expiry": {"POST /v1/sandboxes", `{"timeout":null,"networkPolicy":{}}`,
			map[string]string{"POST /v1/sandboxes": "202 " + endless, get: "200 " + endless},
			[]string{`POST /v1/sandboxes {"metadata":{"opensandbox.io/expires-at":"never"},"networkPolicy":{},"timeout":86400}`, get},
			`202 {"id":"` + id + `"}`},
		"create that asks for more": {"POST /v1/sandboxes",
			`{"timeout":60,"secureAccess":"yes","volumes":[{"pvc":{"createIfNotExists":false,"deleteOnSandboxTermination":true}}]}`,
			map[string]string{"POST /v1/sandboxes": "400 {}"},
			[]string{`POST /v1/sandboxes {"secureAccess":"yes","timeout":60,"volumes":[{"pvc":{"createIfNotExists":false,"deleteOnSandboxTermination":true}}]}`},
			"400 {}"},
		"snapshot": {"POST /sandboxes/" + id + "/snapshots", `{"name":null}`,
			map[string]string{"POST " + path + "/snapshots": `202 {"id":"s","sandboxId":"` + id + `","kind":"filesystem","size":0,"createdAt":"` + near + `","status":{"state":"Creating"}}`},
			[]string{"POST " + path + "/snapshots {}"},
			`202 {"createdAt":"` + near + `","id":"s","sandboxId":"` + id + `","status":{"state":"Creating"}}`},
		"snapshot without a body": {"POST " + path + "/snapshots", "", map[string]string{"POST " + path + "/snapshots": `501 {"code":"NOT_IMPLEMENTED","message":"m"}`},
			[]string{"POST " + path + "/snapshots {}"}, `501 {"code":"SNAPSHOT::NOT_IMPLEMENTED","message":"m"}`},
		"snapshot of a sandbox that is being made": {"POST " + path + "/snapshots", "{}",
			map[string]string{"POST " + path + "/snapshots": `409 {"code":"CONFLICT","message":"m"}`},
			[]string{"POST " + path + "/snapshots {}"}, `409 {"code":"SNAPSHOT::INVALID_STATE","message":"m"}`},
		"snapshots": {"GET /snapshots?state=Ready&state=Failed&sandboxId=" + id, "",
			map[string]string{"GET /v1/snapshots": `200 {"items":[{"id":"s","size":1,"name":"n"}],"pagination":{"page":1}}`},
			[]string{"GET /v1/snapshots?sandboxId=" + id + "&state=Ready&state=Failed"}, `200 {"items":[{"id":"s","name":"n"}],"pagination":{"page":1}}`},
		"one snapshot": {"GET /v1/snapshots/s", "", map[string]string{"GET /v1/snapshots/s": `404 {"code":"SNAPSHOT_NOT_FOUND","message":"m"}`},
			[]string{"GET /v1/snapshots/s"}, `404 {"code":"SNAPSHOT::NOT_FOUND","message":"m"}`},
		"removal of a snapshot": {"DELETE /snapshots/s", "", map[string]string{"DELETE /v1/snapshots/s": "204 "}, []string{"DELETE /v1/snapshots/s"}, "204 "},
		"create of nothing":     {"POST /v1/sandboxes", `[`, map[string]string{"POST /v1/sandboxes": "400 {}"}, []string{`POST /v1/sandboxes [`}, "400 {}"},
		"get with a promise": {get, "", map[string]string{get: "200 " + promised}, []string{get},
			"200 " + sandbox(`{"a":"b"}`, near)},
		"get of what does not expire": {get, "", map[string]string{get: "200 " + endless}, []string{get}, `200 {"id":"` + id + `"}`},
		"list": {"GET /v1/sandboxes?state=Running&state=New&metadata=a%3Db&pageSize=1000", "",
			map[string]string{"GET /v1/sandboxes": `200 {"items":[` + endless + `],"pagination":{"page":1}}`},
			[]string{"GET /v1/sandboxes?metadata=a%3Db&pageSize=200&state=Running"},
			`200 {"items":[{"id":"` + id + `"}],"pagination":{"page":1}}`},
		"list of unknown states": {"GET /v1/sandboxes?state=New&metadata=a%3Db", "",
			map[string]string{"GET /v1/sandboxes": `200 {"items":[],"pagination":{}}`},
			[]string{"GET /v1/sandboxes?metadata=a%3Db%26opensandbox.io%252Fno-sandbox%3D1"}, `200 {"items":[],"pagination":{}}`},
		"metadata": {metadata, `{"a":"c","b":null,"opensandbox.io/expires-at":null}`,
			map[string]string{metadata: `200 {"metadata":{}}`, get: "200 " + plain},
			[]string{metadata + ` {"a":"c","b":null}`, get}, "200 " + plain},
		"metadata of no sandbox": {metadata, `{}`, nil, []string{metadata + ` {}`}, `404 {"code":"DOCKER::SANDBOX_NOT_FOUND","message":"gone"}`},
		"renew": {"POST " + path + "/renew-expiration", `{"expiresAt":"2026-01-03T15:04:06Z"}`,
			map[string]string{get: "200 " + plain, "POST " + path + "/renew-expiration": `200 {"expiresAt":"2026-01-03T15:04:06Z"}`},
			[]string{get, "POST " + path + `/renew-expiration {"expiresAt":"2026-01-03T15:04:06Z"}`}, `200 {"expiresAt":"2026-01-03T15:04:06Z"}`},
		"renew what was promised": {"POST " + path + "/renew-expiration", `{"expiresAt":"2026-01-03T15:04:06Z"}`,
			map[string]string{get: "200 " + endless, "POST " + path + "/renew-expiration": `200 {"expiresAt":"2026-01-03T15:04:06Z"}`, metadata: `200 {}`},
			[]string{get, "POST " + path + `/renew-expiration {"expiresAt":"2026-01-03T15:04:06Z"}`, metadata + ` {"opensandbox.io/expires-at":null}`},
			`200 {"expiresAt":"2026-01-03T15:04:06Z"}`},
		"renew that shortens": {"POST " + path + "/renew-expiration", `{"expiresAt":"2026-01-02T17:04:05+01:00"}`,
			map[string]string{get: "200 " + plain, metadata: "200 {}"},
			[]string{get, metadata + ` {"opensandbox.io/expires-at":"` + near + `"}`}, `200 {"expiresAt":"` + near + `"}`},
		"renew of what is ending": {"POST " + path + "/renew-expiration", `{"expiresAt":"` + near + `"}`,
			map[string]string{get: `200 {"status":{"state":"Stopping"},"expiresAt":"` + far + `"}`}, []string{get}, missing},
		"renew in the past": {"POST " + path + "/renew-expiration", `{"expiresAt":"2026-01-02T15:04:05Z"}`,
			map[string]string{"POST " + path + "/renew-expiration": "400 {}"},
			[]string{"POST " + path + `/renew-expiration {"expiresAt":"2026-01-02T15:04:05Z"}`}, "400 {}"},
		"endpoint": {get + "/endpoints/44772?use_server_proxy=false", "", map[string]string{get + "/endpoints/44772": endpoint},
			[]string{get + "/endpoints/44772"},
			`200 {"endpoint":"10.0.0.1:40000/proxy/44772","headers":{"X-EXECD-ACCESS-TOKEN":"t","X-Sandbox-Dialect":"opensandbox"},"url":"http://10.0.0.1:40000/proxy/44772"}`},
		"endpoint through the service": {get + "/endpoints/8000?use_server_proxy=true", "", map[string]string{get + "/endpoints/8000": endpoint},
			[]string{get + "/endpoints/8000"},
			`200 {"endpoint":"api.test` + path + `/proxy/8000","headers":{"OPEN-SANDBOX-API-KEY":"key"},"url":"http://api.test` + path + `/proxy/8000"}`},
		"endpoint of the sidecar": {get + "/endpoints/18080", "", map[string]string{get + "/endpoints/18080": endpoint}, []string{get + "/endpoints/18080"},
			`200 {"endpoint":"api.test` + path + `/proxy/18080","headers":{"OPEN-SANDBOX-API-KEY":"key","X-Sandbox-Dialect":"opensandbox"},"url":"http://api.test` + path + `/proxy/18080"}`},
		"signed endpoint": {get + "/endpoints/8000?expires=1767369845", "", map[string]string{get + "/endpoints/8000": `200 {"endpoint":"e","headers":{}}`},
			[]string{get + "/endpoints/8000?expires=2026-01-02T16%3A04%3A05Z"}, `200 {"endpoint":"e","headers":{}}`},
		"signed endpoint through the service": {get + "/endpoints/8000?expires=1767369845&use_server_proxy=1", "",
			map[string]string{get + "/endpoints/8000": "400 {}"},
			[]string{get + "/endpoints/8000?expires=2026-01-02T16%3A04%3A05Z&use_server_proxy=1"}, "400 {}"},
		"policy": {get + "/proxy/18080/policy", "", map[string]string{get + "/network-policy": `200 {"defaultAction":"deny","egress":[],"dryRun":false}`},
			[]string{get + "/network-policy"}, `200 {"mode":"deny_all","enforcementMode":"dns+nft","policy":{"defaultAction":"deny","egress":[]},"status":"ok"}`},
		"policy that is replaced": {"POST " + path + "/proxy/18080/policy", `{"egress":[{"action":"allow","target":"a.test"}]}`,
			map[string]string{"PUT " + path + "/network-policy": `200 {"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}],"dryRun":false}`},
			[]string{"PUT " + path + `/network-policy {"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}]}`},
			`200 {"mode":"enforcing","enforcementMode":"dns+nft","policy":{"defaultAction":"deny","egress":[{"action":"allow","target":"a.test"}]},"status":"ok"}`},
		"policy that is reset": {"POST " + path + "/proxy/18080/policy", "",
			map[string]string{"PUT " + path + "/network-policy": `200 {"defaultAction":"allow","egress":[]}`},
			[]string{"PUT " + path + `/network-policy {}`}, `200 {"mode":"allow_all","enforcementMode":"dns+nft","policy":{"defaultAction":"allow","egress":[]},"status":"ok"}`},
		"rules": {"PATCH " + path + "/proxy/18080/policy", `[1]`, map[string]string{"PATCH " + path + "/network-policy": "409 {}", get: "200 " + plain},
			[]string{"PATCH " + path + `/network-policy [1]`, get}, "409 {}"},
		"metrics": {"POST /v1/metrics/events", `{}`, map[string]string{"GET /v1/version": "200 {}"}, []string{"GET /v1/version"}, "204 "},
		"a port":  {"PUT " + path + "/proxy/8000/a?offset=2", "body", nil, []string{"PUT " + path + "/proxy/8000/a?offset=2 body"}, `404 {"code":"SANDBOX_NOT_FOUND","message":"gone","detail":"gone"}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, answers: c.answers}
			response := s.ask(c.target, c.body, "Content-Type: application/json")
			body, _ := io.ReadAll(response.Body)
			if got := fmt.Sprintf("%d %s", response.StatusCode, body); got != c.want && !sameJSON(got, c.want) {
				t.Errorf("answer\n%s, want\n%s", got, c.want)
			}
			if got, want := strings.Join(s.asked, "\n"), strings.Join(c.asked, "\n"); got != want {
				t.Errorf("the service was asked\n%s, want\n%s", got, want)
			}
			if response.Header.Get("X-Request-Id") != "r1" {
				t.Error("the answer has no X-Request-ID")
			}
			for i, header := range s.headers {
				if header.Get("SERVICE-API-KEY") != "key" || header.Get("OPEN-SANDBOX-API-KEY") != "" || i > 0 && header.Get("X-Request-Id") != "r1" {
					t.Errorf("request %d has the headers %v", i, header)
				}
			}
		})
	}
}

// sameJSON compares a status and JSON behind it.
func sameJSON(got, want string) bool {
	gotStatus, gotBody, _ := strings.Cut(got, " ")
	wantStatus, wantBody, _ := strings.Cut(want, " ")
	var a, b any
	if gotStatus != wantStatus || json.Unmarshal([]byte(gotBody), &a) != nil || json.Unmarshal([]byte(wantBody), &b) != nil {
		return false
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func TestWhoseRequestsAreTranslated(t *testing.T) {
	const target = "GET /v1/sandboxes?state=New"
	for name, c := range map[string]struct {
		header     []string
		translated bool
	}{
		"key":                  {nil, true},
		"agent":                {[]string{"OPEN-SANDBOX-API-KEY: ", "User-Agent: OpenSandbox-Go-SDK/0.1.0"}, true},
		"header of endpoints":  {[]string{"OPEN-SANDBOX-API-KEY: ", "X-Sandbox-Dialect: opensandbox"}, true},
		"another client":       {[]string{"OPEN-SANDBOX-API-KEY: ", "SERVICE-API-KEY: key"}, false},
		"a client with both":   {[]string{"SERVICE-API-KEY: other"}, true},
		"a dialect of another": {[]string{"OPEN-SANDBOX-API-KEY: ", "X-Sandbox-Dialect: e2b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{t: t, open: true}
			s.ask(target, "", c.header...)
			if translated := s.asked[0] != target; translated != c.translated {
				t.Errorf("the service was asked %s", s.asked)
			}
			if key := s.headers[0].Get("SERVICE-API-KEY"); name == "a client with both" && key != "other" {
				t.Errorf("the key is %q", key)
			}
		})
	}
}

// A body that is too long to be translated is the service's to refuse, and complete.
func TestLongBody(t *testing.T) {
	s := &service{t: t, open: true, answers: map[string]string{"POST /v1/sandboxes": "413 {}"}}
	body := `{"image":"` + strings.Repeat("x", 2<<20) + `"}`
	if response := s.ask("POST /v1/sandboxes", body); response.StatusCode != 413 || s.asked[0] != "POST /v1/sandboxes "+body {
		t.Errorf("%s, of %d bytes", response.Status, len(s.asked[0]))
	}
}

// backend has sandboxes and keeps what was done to them.
type backend struct {
	sandboxes []lifecycle.Sandbox
	done      chan string
	lost      bool // where no sandbox is known
}

func (b *backend) List(_ context.Context, _ lifecycle.Filter, page lifecycle.Page) (lifecycle.Listing, error) {
	if page.Number > 1 {
		return lifecycle.Listing{Total: len(b.sandboxes)}, nil
	}
	return lifecycle.Listing{Items: b.sandboxes, Total: len(b.sandboxes)}, nil
}

// Get returns the sandbox as it is after the listing.
func (b *backend) Get(_ context.Context, id string) (lifecycle.Sandbox, error) {
	for _, sandbox := range b.sandboxes {
		if sandbox.ID == id && id == "renewed" {
			sandbox.Metadata = nil
		}
		if sandbox.ID == id {
			return sandbox, nil
		}
	}
	return lifecycle.Sandbox{}, lifecycle.NotFound(id)
}

// Locate returns the token of a sandbox, which begins with T- and has its id.
func (b *backend) Locate(_ context.Context, id string, _ int) (lifecycle.Location, error) {
	if b.lost {
		return lifecycle.Location{Token: "T-" + id}, lifecycle.Unavailable("the engine")
	}
	return lifecycle.Location{Token: "T-" + id}, nil
}

func (b *backend) Renew(_ context.Context, id string, expiresAt time.Time) (time.Time, error) {
	b.done <- "renew " + id + " " + expiresAt.Sub(now).String()
	return expiresAt, nil
}

func (b *backend) Events(context.Context, lifecycle.EventSelection) (lifecycle.EventFeed, error) {
	return nil, lifecycle.NotFound("none")
}

func (b *backend) Delete(_ context.Context, id string) error {
	b.done <- "delete " + id
	return nil
}

func TestKeep(t *testing.T) {
	made := func(id, promised string, left time.Duration) lifecycle.Sandbox {
		return lifecycle.Sandbox{ID: id, ExpiresAt: now.Add(left), Metadata: map[string]string{"opensandbox.io/expires-at": promised}}
	}
	b := &backend{done: make(chan string), sandboxes: []lifecycle.Sandbox{
		{ID: "plain", ExpiresAt: now.Add(time.Hour)},
		made("fresh", "never", 23*time.Hour+time.Second),
		made("endless", "never", 23*time.Hour-time.Second),
		made("malformed", "soon", time.Hour),
		made("later", now.Add(time.Minute).Format(time.RFC3339Nano), time.Hour),
		made("outlived", now.Add(-time.Minute).Format(time.RFC3339Nano), -2*time.Minute),
		made("renewed", now.Format(time.RFC3339Nano), time.Hour),
		made("due", now.Format(time.RFC3339Nano), time.Hour),
	}}
	edge := compat.New(compat.Options{Next: http.NotFoundHandler(), Backend: b, Logger: zerolog.Nop(), Clock: func() time.Time { return now }})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		edge.Keep(ctx)
	}()
	for _, want := range []string{"renew endless 23h59m0s", "delete due"} {
		if got := wait.For(t, "a change", b.done); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	cancel()
	wait.For(t, "the end of the keeper", stopped)
}
