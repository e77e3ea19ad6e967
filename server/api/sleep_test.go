package api_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	gen "sandbox.internal/clients/go/lifecycle"
	"sandbox.internal/server/api"
	"sandbox.internal/server/lifecycle"
)

// sleeper records its calls. Wake makes the backend's sandbox Running.
type sleeper struct {
	mu      sync.Mutex
	backend *backend
	change  lifecycle.LifecycleChange
	holds   lifecycle.Holds
	err     error
	woken   int
}

var _ lifecycle.Sleeper = (*sleeper)(nil)

func (s *sleeper) UpdateLifecycle(_ context.Context, _ string, change lifecycle.LifecycleChange, _ time.Duration) (lifecycle.Lifecycle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
	return lifecycle.DefaultLifecycle().With(change), s.err
}

func (s *sleeper) Wake(context.Context, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken++
	if s.err == nil {
		s.backend.setState(lifecycle.StateRunning)
	}
	return s.err
}

func (s *sleeper) Holds(context.Context, string) (lifecycle.Holds, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds, s.err
}

func (s *sleeper) wakes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.woken
}

// fallAsleep makes the backend's sandbox one that sleeps.
func (b *backend) fallAsleep(reason lifecycle.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sandbox.Status.State, b.sandbox.Status.Reason = lifecycle.StatePaused, reason
	b.sandbox.Lifecycle = new(lifecycle.DefaultLifecycle())
}

// TestRequestsWake: a request that is let in wakes the sandbox and succeeds. One that is not let in
// does not wake it, and neither does the question for its activity.
func TestRequestsWake(t *testing.T) {
	s := &sleeper{}
	p, _ := serveSigned(t, func(o *api.Options) { o.Sleeper = s })
	s.backend = p.backend
	signed := p.sign(t, 8000, "600").JSON200
	_, query, _ := strings.Cut(signed.Endpoint, "?")
	hostPath := "/" + p.backend.sandbox.ID + "/8000/"
	for _, tt := range []struct {
		name, path string
		headers    []string
		wakes      bool
	}{
		{"a key", p.path("8000", "/"), []string{"SERVICE-API-KEY", aliceSecret}, true},
		{"no key", p.path("8000", "/"), nil, false},
		{"a wrong key", p.path("8000", "/"), []string{"SERVICE-API-KEY", "wrong"}, false},
		{"the key of another", p.path("8000", "/"), []string{"SERVICE-API-KEY", bobSecret}, false},
		{"a signature", p.path("8000", "/?"+query), nil, true},
		{"a signature of another port", p.path("8001", "/?"+query), nil, false},
		{"a token", hostPath, []string{"X-EXECD-ACCESS-TOKEN", boxToken}, true},
		{"a wrong token", hostPath, []string{"X-EXECD-ACCESS-TOKEN", "wrong"}, false},
		{"activity", "/v1/sandboxes/" + p.backend.sandbox.ID + "/activity", []string{"SERVICE-API-KEY", aliceSecret}, false},
		{"an endpoint", "/v1/sandboxes/" + p.backend.sandbox.ID + "/endpoints/8000", []string{"SERVICE-API-KEY", aliceSecret}, false},
	} {
		for _, reason := range []lifecycle.Reason{lifecycle.ReasonIdle, lifecycle.ReasonHibernated} {
			p.backend.fallAsleep(reason)
			before := s.wakes()
			response, body := p.getOpen(t, tt.path, tt.headers...)
			if woken := s.wakes() - before; woken != 0 != tt.wakes || tt.wakes && response.StatusCode != http.StatusOK {
				t.Errorf("%s, %s: %d wakes, %d %s", tt.name, reason, woken, response.StatusCode, body)
			}
		}
	}
	p.backend.fallAsleep(lifecycle.ReasonUserPause)
	before := s.wakes()
	if response, _ := p.get(t, p.path("8000", "/"), "SERVICE-API-KEY", aliceSecret); response.StatusCode != http.StatusConflict || s.wakes() != before {
		t.Errorf("of one that a client has paused: %d, %d wakes", response.StatusCode, s.wakes()-before)
	}
	p.backend.fallAsleep(lifecycle.ReasonTimeout)
	s.err = lifecycle.Conflictf("no")
	if response, body := p.get(t, p.path("8000", "/"), "SERVICE-API-KEY", aliceSecret); response.StatusCode != http.StatusConflict {
		t.Errorf("of one that cannot be woken: %d %s", response.StatusCode, body)
	}
}

// TestEndpointWakes: the address is given of a sandbox that runs, where that is asked for.
func TestEndpointWakes(t *testing.T) {
	s := &sleeper{}
	p, _ := serveSigned(t, func(o *api.Options) { o.Sleeper = s })
	s.backend = p.backend
	for reason, want := range map[lifecycle.Reason]int{lifecycle.ReasonIdle: 200, lifecycle.ReasonHibernated: 200, lifecycle.ReasonUserPause: 409} {
		p.backend.fallAsleep(reason)
		response, err := p.client.GetEndpointWithResponse(t.Context(), p.backend.sandbox.ID, 80, &gen.GetEndpointParams{Wake: new(true)}, with(aliceSecret))
		if err != nil || response.StatusCode() != want {
			t.Errorf("%s: %v %s", reason, err, response.Body)
		}
	}
}

// TestLifecycleIsConverted: what is asked for at create and by a change, and what is shown.
func TestLifecycleIsConverted(t *testing.T) {
	b := newBackend()
	s := &sleeper{backend: b}
	service := serveWith(t, api.Options{Backend: b, Sleeper: s})
	body := gen.CreateSandboxRequest{
		Image: gen.Image{URI: "busybox"}, Timeout: 60, ResourceLimits: &gen.ResourceLimits{}, Entrypoint: []string{"sleep"},
		Lifecycle: &gen.SandboxLifecycle{OnIdle: new("pause"), IdleSeconds: new(0.05)},
	}
	if _, err := service.client.CreateSandboxWithResponse(t.Context(), &gen.CreateSandboxParams{}, body); err != nil {
		t.Fatal(err)
	}
	want := &lifecycle.Lifecycle{OnIdle: lifecycle.OnIdlePause, Idle: 50 * time.Millisecond, Hibernate: lifecycle.DefaultHibernate, OnTimeout: lifecycle.OnTimeoutDelete, AutoResume: true}
	if !reflect.DeepEqual(b.spec.Lifecycle, want) {
		t.Errorf("asked for %+v", b.spec.Lifecycle)
	}
	b.sandbox.Lifecycle = want
	shown, err := service.client.GetSandboxWithResponse(t.Context(), b.sandbox.ID, &gen.GetSandboxParams{})
	if err != nil || shown.JSON200 == nil || *shown.JSON200.Lifecycle.OnIdle != "pause" || *shown.JSON200.Lifecycle.IdleSeconds != 0.05 || *shown.JSON200.Lifecycle.HibernateSeconds != 300 ||
		*shown.JSON200.Lifecycle.OnTimeout != "delete" || !*shown.JSON200.Lifecycle.AutoResume {
		t.Errorf("shown: %v %s", err, shown.Body)
	}
	changed, err := service.client.UpdateLifecycleWithResponse(t.Context(), b.sandbox.ID, gen.SandboxLifecycle{OnTimeout: new("pause"), AutoResume: new(false)})
	if err != nil || changed.JSON200 == nil || *changed.JSON200.OnTimeout != "pause" || *changed.JSON200.AutoResume || s.change.OnIdle != nil || s.change.Idle != nil {
		t.Errorf("changed: %v %s, %+v", err, changed.Body, s.change)
	}
	// The name of a media type has no case (RFC 9110, section 8.3.1).
	for _, media := range []string{"Application/JSON", "APPLICATION/MERGE-PATCH+JSON; charset=utf-8"} {
		got, err := service.client.UpdateLifecycleWithBodyWithResponse(t.Context(), b.sandbox.ID, media, strings.NewReader(`{"autoResume":false}`))
		if err != nil || got.JSON200 == nil || *got.JSON200.AutoResume {
			t.Errorf("%s: %v %s", media, err, got.Body)
		}
	}
	without := serveWith(t, api.Options{Backend: b})
	for name, answer := range map[string]func() (int, error){
		"create": func() (int, error) {
			r, err := without.client.CreateSandboxWithResponse(t.Context(), &gen.CreateSandboxParams{}, body)
			return r.StatusCode(), err
		},
		"change": func() (int, error) {
			r, err := without.client.UpdateLifecycleWithResponse(t.Context(), b.sandbox.ID, gen.SandboxLifecycle{})
			return r.StatusCode(), err
		},
	} {
		if status, err := answer(); err != nil || status != http.StatusNotImplemented {
			t.Errorf("%s on a backend without the ability: %d (%v)", name, status, err)
		}
	}
}

// TestHolds: holds are shown as the backend has them, and 502 says that the daemon does not answer.
func TestHolds(t *testing.T) {
	b := newBackend()
	b.sandbox.Status.State = lifecycle.StateRunning
	s := &sleeper{backend: b, holds: lifecycle.Holds{
		Holds: []lifecycle.Hold{{Kind: "command", ID: "one", Since: birth}}, Idle: time.Second, WakeAt: birth.Add(time.Hour),
	}}
	service := serveWith(t, api.Options{Backend: b, Sleeper: s})
	answer, err := service.client.GetHoldsWithResponse(t.Context(), b.sandbox.ID)
	if err != nil || answer.JSON200 == nil || len(answer.JSON200.Holds) != 1 || answer.JSON200.Holds[0].Kind != "command" ||
		answer.JSON200.IdleMilliseconds != 1000 || !answer.JSON200.WakeAt.Equal(birth.Add(time.Hour)) {
		t.Errorf("%v %s", err, answer.Body)
	}
	s.holds = lifecycle.Holds{}
	if _, _, body := service.get(t, http.MethodGet, "/v1/sandboxes/"+b.sandbox.ID+"/holds"); strings.TrimSpace(body) != `{"holds":[],"idleMilliseconds":0}` {
		t.Errorf("none: %s", body)
	}
	p := servePorts(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"holds":[{"kind":"code","id":%q,"since":"2026-01-02T15:04:05Z"}],"idleMilliseconds":0}`, r.URL.Path)
	}, nil)
	path := "/v1/sandboxes/" + p.backend.sandbox.ID + "/holds"
	if response, body := p.get(t, path); response.StatusCode != http.StatusOK || !strings.Contains(body, `"id":"/holds"`) {
		t.Errorf("on a backend without the ability: %d %s", response.StatusCode, body)
	}
	p.backend.setState(lifecycle.StatePaused)
	if response, body := p.get(t, path); response.StatusCode != http.StatusOK || strings.TrimSpace(body) != `{"holds":[],"idleMilliseconds":0}` {
		t.Errorf("of a Paused sandbox on a backend without the ability: %d %s", response.StatusCode, body)
	}
	s.err = fmt.Errorf("%w: 404", lifecycle.ErrNoHolds)
	if status, _, body := service.get(t, http.MethodGet, "/v1/sandboxes/"+b.sandbox.ID+"/holds"); status != http.StatusBadGateway {
		t.Errorf("%d %s", status, body)
	}
}
