package api_test

import (
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"sandbox.internal/server/lifecycle"
)

// ask sends a request and returns the answer.
func (s *service) ask(t *testing.T, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := s.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func TestNetworkPolicy(t *testing.T) {
	b := newBackend()
	b.policy = lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "pypi.org"}}}
	s := serve(t, b)
	path := "/v1/sandboxes/" + b.sandbox.ID + "/network-policy"
	const inForce = `{"defaultAction":"deny","dryRun":false,"egress":[{"action":"allow","target":"pypi.org"}]}`
	for _, test := range []struct {
		method, body string
		want         lifecycle.PolicyChange
	}{
		{"GET", "", lifecycle.PolicyChange{}},
		{"PUT", `{}`, lifecycle.PolicyChange{Replace: &lifecycle.NetworkPolicy{}}},
		{"PUT", `{"defaultAction":"deny","egress":[{"action":"deny","target":"10.0.0.0/8"}],"dryRun":true}`, lifecycle.PolicyChange{
			Replace: &lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "deny", Target: "10.0.0.0/8"}}, DryRun: true}}},
		{"PATCH", `[{"action":"allow","target":"*.pypi.org"}]`, lifecycle.PolicyChange{Merge: []lifecycle.EgressRule{{Action: "allow", Target: "*.pypi.org"}}}},
		{"DELETE", `["a.example","b.example"]`, lifecycle.PolicyChange{Remove: []string{"a.example", "b.example"}}},
	} {
		b.change = lifecycle.PolicyChange{}
		status, _, body := s.ask(t, test.method, path, test.body)
		if status != http.StatusOK || strings.TrimSpace(body) != inForce {
			t.Errorf("%s %s: %d %s", test.method, test.body, status, body)
		}
		if !reflect.DeepEqual(b.change, test.want) {
			t.Errorf("%s %s: the backend was asked %+v", test.method, test.body, b.change)
		}
	}
	for _, test := range []struct{ method, body string }{
		{"PUT", `{"defaultAction":"maybe"}`}, {"PUT", `{"rules":[]}`}, {"PATCH", `[]`}, {"PATCH", `[{"action":"allow"}]`}, {"DELETE", `[]`}, {"DELETE", `[1]`},
	} {
		if status, _, body := s.ask(t, test.method, path, test.body); status != http.StatusBadRequest {
			t.Errorf("%s %s: %d %s", test.method, test.body, status, body)
		}
	}
	conflict := lifecycle.Conflictf("the sandbox has no egress sidecar")
	b.err = conflict
	for _, method := range []string{"GET", "PUT"} {
		body := ""
		if method == "PUT" {
			body = "{}"
		}
		if status, _, text := s.ask(t, method, path, body); status != http.StatusConflict || !strings.Contains(text, conflict.Message) {
			t.Errorf("%s without a sidecar: %d %s", method, status, text)
		}
	}
}

func TestNetworkDecisions(t *testing.T) {
	b := newBackend()
	s := serve(t, b)
	path := "/v1/sandboxes/" + b.sandbox.ID + "/network-decisions"
	status, header, body := s.ask(t, "GET", path, "")
	if status != http.StatusOK || header.Get("Content-Type") != "application/json" || body != `{"items":[]}` {
		t.Errorf("the list: %d %s %s", status, header, body)
	}
	status, header, body = s.ask(t, "GET", path, "", "Accept", "text/event-stream", "Last-Event-ID", "6")
	if status != http.StatusOK || header.Get("Content-Type") != "text/event-stream" || body != "id: 7\ndata: "+decisionOfTests+"\n\n" {
		t.Errorf("the stream: %d %s %s", status, header, body)
	}
	if want := (lifecycle.DecisionsRequest{Follow: true, LastEventID: "6"}); b.decisions != want {
		t.Errorf("the backend was asked %+v", b.decisions)
	}
}
