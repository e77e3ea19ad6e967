package conform_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/openapi/conform"
	"sandbox.internal/openapi/document"
	"sandbox.internal/test/wait"
)

// recorder stands in for a test that is expected to fail.
type recorder struct {
	mu     sync.Mutex
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (r *recorder) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.errors, "\n")
}

func load(t *testing.T, loader func() (*openapi3.T, error)) *openapi3.T {
	t.Helper()
	doc, err := loader()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// answer is what a made-up service says.
type answer struct {
	status  int
	headers map[string]string
	body    string
}

func (a answer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	for name, value := range a.headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

var asJSON = map[string]string{"Content-Type": "application/json"}

const (
	sandboxFields = `"id": "1", "status": {"state": "Running", "reason": "", "message": "",
		"lastTransitionAt": "2026-01-02T15:04:05Z"}, "metadata": {"any": "key"}, "entrypoint": ["sleep"],
		"expiresAt": "2026-01-02T15:14:05Z", "createdAt": "2026-01-02T15:04:05Z"`
	pagination = `"pagination": {"page": 1, "pageSize": 20, "totalItems": 0, "totalPages": 0, "hasNextPage": false}`
)

func TestTransport(t *testing.T) {
	retrying := map[string]string{"Content-Type": "application/json", "Retry-After": "1"}
	located := map[string]string{"Content-Type": "application/json; charset=utf-8", "Location": "/v1/sandboxes/1"}
	octets := func(header ...string) map[string]string {
		all := map[string]string{"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
		for i := 0; i < len(header); i += 2 {
			all[header[i]] = header[i+1]
		}
		return all
	}
	tests := []struct {
		name   string
		loader func() (*openapi3.T, error)
		method string
		path   string
		answer answer
		want   string // a part of the report; empty when the answer conforms
	}{
		{"a good body", document.LoadLifecycle, "POST", "/v1/sandboxes",
			answer{202, located, "{" + sandboxFields + "}"}, ""},
		{"a good error", document.LoadLifecycle, "GET", "/v1/sandboxes/1",
			answer{404, asJSON, `{"code": "SANDBOX_NOT_FOUND", "message": "no", "detail": "no"}`}, ""},
		{"a good time to try again", document.LoadLifecycle, "GET", "/v1/sandboxes/1", answer{503, retrying,
			`{"code": "SERVICE_UNAVAILABLE", "message": "no", "detail": "no"}`}, ""},
		{"no body", document.LoadLifecycle, "DELETE", "/v1/sandboxes/1", answer{status: 204}, ""},
		{"a good download", document.LoadExecd, "GET", "/files/download?path=a",
			answer{206, octets("Content-Range", "bytes 0-2/9"), "abc"}, ""},
		{"a good text with a version", document.LoadExecd, "GET", "/metrics",
			answer{200, map[string]string{"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}, "up 1\n"}, ""},
		{"an empty object", document.LoadExecd, "DELETE", "/files?path=a", answer{200, asJSON, "{}"}, ""},

		{"an undeclared status", document.LoadLifecycle, "GET", "/v1/sandboxes/1",
			answer{418, asJSON, "{}"}, "getSandbox 418 (GET /v1/sandboxes/1): the contract does not declare this status"},
		{"an undeclared content type", document.LoadLifecycle, "GET", "/health",
			answer{200, map[string]string{"Content-Type": "text/html"}, "<p>"}, `no content of type "text/html"`},
		{"no content type", document.LoadLifecycle, "GET", "/v1/sandboxes", answer{200, map[string]string{"Content-Type": ""}, ""},
			`no content of type ""`},
		{"a body where none is declared", document.LoadLifecycle, "POST", "/v1/sandboxes/1/pause",
			answer{202, asJSON, "{}"}, "declares no body"},
		{"a missing field", document.LoadLifecycle, "GET", "/health",
			answer{200, asJSON, "{}"}, `property "status" is missing`},
		{"a missing header", document.LoadLifecycle, "POST", "/v1/sandboxes",
			answer{202, asJSON, "{" + sandboxFields + "}"}, `response header "Location" missing`},
		{"an undeclared time to try again", document.LoadLifecycle, "GET", "/v1/sandboxes/1", answer{404, retrying,
			`{"code": "SANDBOX_NOT_FOUND", "message": "no", "detail": "no"}`}, "declares no header Retry-After"},
		{"null for an array", document.LoadLifecycle, "GET", "/v1/sandboxes",
			answer{200, asJSON, `{"items": null, ` + pagination + `}`}, "Value is not nullable"},
		{"an undeclared field", document.LoadLifecycle, "GET", "/v1/sandboxes",
			answer{200, asJSON, `{"items": [{"image": {"uri": "a"}, "updatedAt": "", ` + sandboxFields + `}], ` + pagination + `}`},
			"body/items/0/updatedAt: the contract does not declare this field"},
		{"a returned credential", document.LoadLifecycle, "GET", "/v1/sandboxes/1",
			answer{200, asJSON, `{"image": {"uri": "a", "auth": {"username": "u", "password": "p"}}, ` + sandboxFields + `}`},
			"writeOnly"},
		{"a code that is not listed", document.LoadLifecycle, "GET", "/v1/sandboxes/1",
			answer{404, asJSON, `{"code": "NO_SANDBOX", "message": "no", "detail": "no"}`}, "does not list the code NO_SANDBOX"},
		{"no JSON", document.LoadLifecycle, "GET", "/health", answer{200, asJSON, "{"}, "failed to decode response body"},
		{"a partial download without its range", document.LoadExecd, "GET", "/files/download?path=a",
			answer{206, octets(), "abc"}, `response header "Content-Range" missing`},
		{"a path that the contract lacks", document.LoadExecd, "GET", "/nowhere",
			answer{status: 404}, "GET /nowhere is not in the contract"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			defer server.Close()
			var report recorder
			client := http.Client{Transport: conform.New(load(t, test.loader), nil, &report), Timeout: wait.Patience()}
			req, err := http.NewRequestWithContext(t.Context(), test.method, server.URL+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || string(body) != test.answer.body {
				t.Errorf("the caller got the body %q, %v; want %q", body, err, test.answer.body)
			}
			got := report.all()
			if test.want == "" && got != "" {
				t.Errorf("a good answer was reported: %s", got)
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("reported %q, want something with %q", got, test.want)
			}
		})
	}
}

func TestTransportLeavesAStreamFlowing(t *testing.T) {
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Command-ID", "1")
		_, _ = io.WriteString(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		<-ended
		_, _ = io.WriteString(w, "data: last\n\n")
	}))
	defer server.Close()
	client := http.Client{Transport: conform.New(load(t, document.LoadExecd), nil, t), Timeout: wait.Patience()}
	resp, err := client.Post(server.URL+"/command", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "data: first\n" {
		t.Errorf("first line %q, %v", line, err)
	}
	close(ended)
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "\ndata: last\n\n" {
		t.Errorf("rest %q, %v", rest, err)
	}
}

func TestTransportHandsOnABrokenAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
	}))
	defer server.Close()
	client := http.Client{Transport: conform.New(load(t, document.LoadLifecycle), nil, t), Timeout: wait.Patience()}
	resp, err := client.Get(server.URL + "/health")
	if err == nil {
		resp.Body.Close()
		t.Error("a body that broke off was taken for a whole one")
	}
}

func TestTransportLetsOutsidePathsPass(t *testing.T) {
	server := httptest.NewServer(answer{418, nil, "tea"})
	defer server.Close()
	var report recorder
	client := http.Client{Transport: conform.New(load(t, document.LoadExecd), nil, &report, "/proxy/", "/docs"), Timeout: wait.Patience()}
	get := func(path string) {
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	for _, path := range []string{"/proxy/8000/a", "/docs"} {
		get(path)
		if got := report.all(); got != "" {
			t.Errorf("%s was reported: %s", path, got)
		}
	}
	get("/docs/more")
	if got := report.all(); !strings.Contains(got, "/docs/more") {
		t.Errorf("/docs/more is not outside, but the report is %q", got)
	}
}

func TestSeen(t *testing.T) {
	server := httptest.NewServer(answer{404, asJSON, `{"code": "SANDBOX_NOT_FOUND", "message": "no", "detail": "no"}`})
	defer server.Close()
	transport := conform.New(load(t, document.LoadLifecycle), nil, t)
	for _, path := range []string{"/v1/sandboxes/b", "/v1/sandboxes/b/endpoints/1", "/v1/sandboxes/a"} {
		resp, err := (&http.Client{Transport: transport, Timeout: wait.Patience()}).Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	want := []string{"getEndpoint 404", "getSandbox 404"}
	if got := transport.Seen(); !slices.Equal(got, want) {
		t.Errorf("seen %q, want %q", got, want)
	}
	unseen := transport.Unseen()
	if slices.Contains(unseen, "getSandbox 404") || !slices.Contains(unseen, "getSandbox 200") {
		t.Errorf("unseen is %q", unseen)
	}
}

func TestCheckEvent(t *testing.T) {
	transport := conform.New(load(t, document.LoadExecd), nil, t)
	tests := []struct {
		name, schema, data string
		want               string // a part of the error; empty when the event is good
	}{
		{"output", "StreamEvent", `{"type": "stdout", "text": "hi", "timestamp": 1, "partial": true, "raw": "/w=="}`, ""},
		{"the end of a timeout", "StreamEvent", `{"type": "error", "timestamp": 1, "execution_time": 2, "exit_code": null,
			"error": {"ename": "CommandTimeoutError", "evalue": "", "traceback": []}}`, ""},
		{"metrics", "Metrics", `{"cpu_count": 1.5, "cpu_used_pct": 0, "mem_total_mib": 1, "mem_used_mib": 1, "timestamp": 1}`, ""},
		{"an unknown type", "StreamEvent", `{"type": "shout", "timestamp": 1}`, "StreamEvent"},
		{"no time", "StreamEvent", `{"type": "ping"}`, `"timestamp" is missing`},
		{"null for an array", "StreamEvent", `{"type": "error", "timestamp": 1,
			"error": {"ename": "", "evalue": "", "traceback": null}}`, "traceback"},
		{"an undeclared field", "StreamEvent", `{"type": "ping", "timestamp": 1, "Text": ""}`, "StreamEvent/Text: "},
		{"no JSON", "StreamEvent", `hello`, "is not JSON"},
		{"an unknown schema", "Event", `{}`, "no schema Event"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := transport.CheckEvent(test.schema, []byte(test.data))
			if test.want == "" {
				if err != nil {
					t.Errorf("a good event was refused: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}
