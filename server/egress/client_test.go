package egress_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"sandbox.internal/server/egress"
	"sandbox.internal/server/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sidecar answers as the test says, and remembers the last request.
type sidecar struct {
	lifecycle.Sidecar
	status              int
	answer              string
	method, path, asked string
	header              http.Header
}

func newSidecar(t *testing.T) *sidecar {
	s := &sidecar{status: http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.method, s.path, s.asked, s.header = r.Method, r.URL.Path, strings.TrimSpace(string(body)), r.Header
		w.WriteHeader(s.status)
		fmt.Fprint(w, s.answer)
	}))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.Token = "secret"
	if s.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRequests(t *testing.T) {
	s, c := newSidecar(t), egress.New("127.0.0.1")
	s.answer = `{"defaultAction":"deny","egress":[{"action":"allow","target":"a.example"}],"dryRun":true}`
	want := lifecycle.NetworkPolicy{DefaultAction: "deny", Egress: []lifecycle.EgressRule{{Action: "allow", Target: "a.example"}}, DryRun: true}
	change := func(change lifecycle.PolicyChange) func() (lifecycle.NetworkPolicy, error) {
		return func() (lifecycle.NetworkPolicy, error) { return c.Change(t.Context(), s.Sidecar, change) }
	}
	for name, test := range map[string]struct {
		ask                func() (lifecycle.NetworkPolicy, error)
		method, path, body string
	}{
		"read":    {func() (lifecycle.NetworkPolicy, error) { return c.Policy(t.Context(), s.Sidecar) }, "GET", "/policy", ""},
		"propose": {func() (lifecycle.NetworkPolicy, error) { return c.Propose(t.Context(), s.Sidecar) }, "GET", "/decisions/proposal", ""},
		"replace": {change(lifecycle.PolicyChange{Replace: &want}), "PUT", "/policy", `{"defaultAction":"deny","dryRun":true,"egress":[{"action":"allow","target":"a.example"}]}`},
		"merge":   {change(lifecycle.PolicyChange{Merge: want.Egress}), "PATCH", "/policy", `[{"action":"allow","target":"a.example"}]`},
		"remove":  {change(lifecycle.PolicyChange{Remove: []string{"a.example"}}), "DELETE", "/policy", `["a.example"]`},
	} {
		got, err := test.ask()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if s.method != test.method || s.path != test.path || s.asked != test.body || s.header.Get("X-EGRESS-ACCESS-TOKEN") != "secret" {
			t.Errorf("%s: the sidecar was asked %s %s %s", name, s.method, s.path, s.asked)
		}
	}
	s.answer = `{"status":"ok","startedAt":"2026-01-02T15:04:05Z","restarts":3}`
	if restarts, err := c.Health(t.Context(), s.Sidecar); err != nil || restarts != 3 {
		t.Errorf("health: %d, %v", restarts, err)
	}
	s.answer = "id: 1\ndata: {}\n\n"
	stream, err := c.Decisions(t.Context(), s.Sidecar, lifecycle.DecisionsRequest{Follow: true, LastEventID: "7"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(stream)
	if err := errors.Join(err, stream.Close()); err != nil || string(text) != s.answer {
		t.Errorf("decisions: %q, %v", text, err)
	}
	if s.header.Get("Accept") != "text/event-stream" || s.header.Get("Last-Event-ID") != "7" {
		t.Errorf("decisions were asked for with %v", s.header)
	}
}

func TestRefusals(t *testing.T) {
	s, c := newSidecar(t), egress.New("127.0.0.1")
	s.answer = `{"code":"INVALID_REQUEST_BODY","message":"egress[0].target: no"}`
	for status, want := range map[int]lifecycle.Kind{400: lifecycle.KindInvalid, 413: lifecycle.KindInvalid, 401: lifecycle.KindUnavailable, 500: lifecycle.KindUnavailable} {
		s.status = status
		_, err := c.Policy(t.Context(), s.Sidecar)
		known := (*lifecycle.Error)(nil)
		if !errors.As(err, &known) || known.Kind != want {
			t.Errorf("%d: %v", status, err)
		}
		if _, err := c.Decisions(t.Context(), s.Sidecar, lifecycle.DecisionsRequest{}); !errors.As(err, &known) || known.Kind != want {
			t.Errorf("decisions, %d: %v", status, err)
		}
	}
	for name, at := range map[string]lifecycle.Sidecar{"no port": {}, "no listener": {Port: 1}} {
		known := (*lifecycle.Error)(nil)
		if _, err := c.Health(t.Context(), at); !errors.As(err, &known) || known.Kind != lifecycle.KindUnavailable || strings.Contains(known.Message, "127.0.0.1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	c := egress.New("")
	at := lifecycle.Sidecar{Token: "secret", Upstream: "192.0.2.1"}
	env, whole, err := c.Environment(at, nil)
	if want := map[string]string{"EGRESS_ACCESS_TOKEN": "secret", "EGRESS_POLICY": `{"dryRun":false,"egress":[]}`, "EGRESS_UPSTREAM": "192.0.2.1"}; err != nil || !whole || !reflect.DeepEqual(env, want) {
		t.Errorf("no policy: %v, %v, %v", env, whole, err)
	}
	big := lifecycle.NetworkPolicy{}
	for i := range 4000 {
		big.Egress = append(big.Egress, lifecycle.EgressRule{Action: "allow", Target: fmt.Sprintf("%d.example.com", i)})
	}
	env, whole, err = c.Environment(at, &big)
	var policy struct{ DefaultAction string }
	if err := errors.Join(err, json.Unmarshal([]byte(env["EGRESS_POLICY"]), &policy)); err != nil || whole || policy.DefaultAction != "deny" {
		t.Errorf("a big policy: %.100q, %v, %v", env["EGRESS_POLICY"], whole, err)
	}
}
