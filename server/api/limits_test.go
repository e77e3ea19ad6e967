package api_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	guard "sandbox.internal/openapi/serve"
	"sandbox.internal/server/api"
	"sandbox.internal/server/keys"
)

// clock is a time that stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(by)
}

func TestRateLimitOfAKey(t *testing.T) {
	now := &clock{now: birth}
	accepted := allKeys()
	for i := range accepted {
		if accepted[i].Name == "alice" || accepted[i].Name == "bob" {
			accepted[i].Rate = guard.Rate{PerSecond: 0.4, Burst: 2}
		}
	}
	p := servePorts(t, showRequest, func(o *api.Options) { o.Keys, o.Clock = keys.Fixed(accepted...), now.Now })

	const list = "/v1/sandboxes"
	for range 2 {
		if got := statusOf(t, p.service, http.MethodGet, list, "", aliceSecret); got != 200 {
			t.Fatalf("within the burst: %d", got)
		}
	}
	for _, path := range []string{list, p.path("8000", "/"), "/v1/version", "/v1/sandboxes/unknown"} {
		response, body := p.get(t, path)
		wantError(t, response, body, http.StatusTooManyRequests, "RATE_LIMITED", "0.4 requests a second", "2 at once")
		if got := response.Header.Get("Retry-After"); got != "3" { // 2.5 s, rounded up
			t.Errorf("%s: Retry-After %q", path, got)
		}
	}
	// Neither another key, nor one without a limit, nor what needs no key is touched.
	for range 5 {
		if got := statusOf(t, p.service, http.MethodGet, list, "", adminSecret); got != 200 {
			t.Errorf("admin: %d", got)
		}
		if got := statusOf(t, p.service, http.MethodGet, "/health", "", aliceSecret); got != 200 {
			t.Errorf("health: %d", got)
		}
	}
	if got := statusOf(t, p.service, http.MethodGet, list, "", bobSecret); got != 200 {
		t.Errorf("bob: %d", got)
	}
	// A wrong key is 401 and counts for no key.
	if got := statusOf(t, p.service, http.MethodGet, list, "", "wrong"); got != 401 {
		t.Errorf("wrong key: %d", got)
	}
	now.move(2500 * time.Millisecond)
	for _, want := range []int{200, 429} {
		if got := statusOf(t, p.service, http.MethodGet, p.path("8000", "/"), "", aliceSecret); got != want {
			t.Errorf("after a rest: %d, want %d", got, want)
		}
	}
}

func TestRateLimitWithoutKeysIsPerAddress(t *testing.T) {
	now := &clock{now: birth}
	s := serveWith(t, api.Options{Backend: newBackend(), Clock: now.Now, Limits: api.Limits{Anonymous: guard.Rate{PerSecond: 1, Burst: 1}}})
	for _, want := range []int{200, 429} {
		if got := statusOf(t, s, http.MethodGet, "/v1/sandboxes", "", ""); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}

// TestRateLimitOfANetwork: who has one IPv6 address has a whole network of them.
func TestRateLimitOfANetwork(t *testing.T) {
	handler, err := api.New(api.Options{Backend: newBackend(), Logger: zerolog.Nop(),
		Limits: api.Limits{Anonymous: guard.Rate{PerSecond: 0.001, Burst: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []struct {
		from string
		want int
	}{{"[2001:db8::1]:9", 200}, {"[2001:db8::2]:9", 429}, {"[2001:db8:0:1::1]:9", 200}, {"192.0.2.1:9", 200}, {"192.0.2.2:9", 200}} {
		r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes", nil)
		r.RemoteAddr = request.from
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		if answer.Code != request.want {
			t.Errorf("%s: %d, want %d", request.from, answer.Code, request.want)
		}
	}
}

func TestGuessingKeysIsSlow(t *testing.T) {
	now := &clock{now: birth}
	p := servePorts(t, showRequest, func(o *api.Options) {
		o.Limits, o.Clock = api.Limits{Refused: guard.Rate{PerSecond: 0.05, Burst: 3}}, now.Now
	})
	get := func(secret string) int { return statusOf(t, p.service, http.MethodGet, "/v1/sandboxes", "", secret) }
	for i, want := range []int{401, 401, 401, 429} {
		if got := get("guess"); got != want {
			t.Errorf("guess %d: %d, want %d", i, got, want)
		}
	}
	// The right key must not stand out, on any path that takes one.
	if got := get(aliceSecret); got != 429 {
		t.Errorf("the right key after too many wrong ones: %d", got)
	}
	response, body := p.get(t, p.path("8000", "/"))
	wantError(t, response, body, http.StatusTooManyRequests, "RATE_LIMITED", "wrong key")
	if got := response.Header.Get("Retry-After"); got != "20" {
		t.Errorf("Retry-After %q", got)
	}
	if got := statusOf(t, p.service, http.MethodGet, "/health", "", "guess"); got != 200 {
		t.Errorf("health: %d", got)
	}
	now.move(20 * time.Second)
	for i, want := range []int{200, 200, 401, 429} {
		secret := aliceSecret
		if i > 1 {
			secret = "guess"
		}
		if got := get(secret); got != want {
			t.Errorf("after a rest, request %d: %d, want %d", i, got, want)
		}
	}
}
