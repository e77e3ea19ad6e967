package serve_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
)

// limited is a server whose clock the test moves. A caller is called by the header
// X-Caller; the key is checked unless callers are not wanted.
type limited struct {
	server *serve.Server
	now    time.Time
}

func newLimited(t testing.TB, rate, refused serve.Rate) *limited {
	t.Helper()
	return limitedBy(t, rulesOf(t, document(t)), rate, refused)
}

func limitedBy(t testing.TB, contract *rules.Contract, rate, refused serve.Rate) *limited {
	t.Helper()
	l := &limited{now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
	server, err := serve.New(serve.Options{
		Rules:        contract,
		Logger:       zerolog.Nop(),
		Authenticate: serve.HeaderSecret(keyHeader, key),
		RateLimits: serve.RateLimits{
			Of: func(r *http.Request, _ any) (string,
				serve.Rate) {
				return r.Header.Get("X-Caller"), rate
			},
			Refused: refused,
			Clock:   func() time.Time { return l.now },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	guards := server.OperationMiddlewares()
	for id, route := range paths {
		server.Echo().Add(route[0], route[1],
			func(c echo.Context) error { return c.NoContent(http.StatusNoContent) }, guards[id]...)
	}
	server.Echo().GET("/outside",
		func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
		server.AuthenticatedAndCounted)
	server.Echo().GET("/uncounted",
		func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
		server.Authenticated)
	l.server = server
	return l
}

func (l *limited) get(path, caller, secret, remote string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("X-Caller", caller)
	r.Header.Set(keyHeader, secret)
	r.RemoteAddr = remote
	w := httptest.NewRecorder()
	l.server.ServeHTTP(w, r)
	return w
}

const somewhere = "192.0.2.1:1234"

func TestRateLimitAnswer(t *testing.T) {
	l := newLimited(t, serve.Rate{PerSecond: 2, Burst: 1}, serve.Rate{})
	if w := l.get("/v1/widgets", "a", key, somewhere); w.Code != http.StatusNoContent {
		t.Fatalf("the first request: %d %s", w.Code, w.Body)
	}
	w := l.get("/v1/widgets", "a", key, somewhere)
	var body struct{ Code, Message string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusTooManyRequests || body.Code != "RATE_LIMITED" ||
		w.Header().Get("Retry-After") != "1" || w.Header().Get("X-Request-ID") == "" {
		t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
	}
	for path, want := range map[string]int{"/outside": 429, "/uncounted": 204, "/health": 204,
		"/nowhere": 404} {
		if w := l.get(path, "a", key, somewhere); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	l.now = l.now.Add(500 * time.Millisecond)
	if w := l.get("/outside", "a", key, somewhere); w.Code != http.StatusNoContent {
		t.Errorf("half a second later: %d %s", w.Code, w.Body)
	}
}

// TestRateLimitKeepsItsPromises holds for any pace of requests that no more pass than
// the rate allows, and that Retry-After is true.
func TestRateLimitKeepsItsPromises(t *testing.T) {
	contract := rulesOf(t, document(t)) // reading it takes most of the time
	rapid.Check(t, func(rt *rapid.T) {
		perSecond := rapid.IntRange(1, 50).Draw(rt, "requests per second")
		burst := rapid.IntRange(0, 20).Draw(rt, "burst")
		l := limitedBy(t, contract, serve.Rate{PerSecond: float64(perSecond), Burst: burst},
			serve.Rate{})
		begin, passed := l.now, 0
		for range rapid.IntRange(1, 100).Draw(rt, "requests") {
			l.now = l.now.Add(time.Duration(rapid.IntRange(0, 300).Draw(rt,
				"ms")) * time.Millisecond)
			w := l.get("/v1/widgets", "a", key, somewhere)
			if w.Code == http.StatusTooManyRequests {
				seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
				if err != nil || seconds < 1 {
					rt.Fatalf("Retry-After %q", w.Header().Get("Retry-After"))
				}
				l.now = l.now.Add(time.Duration(seconds) * time.Second)
				if w = l.get("/v1/widgets", "a", key, somewhere); w.Code != http.StatusNoContent {
					rt.Fatalf("refused again after %d s", seconds)
				}
			}
			passed++
			most := float64(max(burst, 1)) + float64(perSecond)*l.now.Sub(begin).Seconds()
			if float64(passed) > most+1e-6 {
				rt.Fatalf("%d requests passed in %v, at most %.1f may", passed, l.now.Sub(begin),
					most)
			}
		}
	})
}

func TestRateLimitAtTheSameTime(t *testing.T) {
	const burst = 25
	l := newLimited(t, serve.Rate{PerSecond: 1, Burst: burst}, serve.Rate{})
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if l.get("/v1/widgets", "a", key, somewhere).Code == http.StatusNoContent {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	if passed.Load() != burst {
		t.Errorf("%d requests passed at once, want %d", passed.Load(), burst)
	}
}

func TestRateLimitDropsFullBuckets(t *testing.T) {
	l := newLimited(t, serve.Rate{PerSecond: 1000, Burst: 1}, serve.Rate{PerSecond: 1000, Burst: 1})
	for i := range 5_000 {
		l.now = l.now.Add(time.Millisecond)
		remote := fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
		l.get("/v1/widgets", strconv.Itoa(i), key, remote)
		l.get("/v1/widgets", "", "wrong", remote)
	}
	if callers, addresses := l.server.Remembered(); callers > 1100 || addresses > 1100 {
		t.Errorf("%d callers and %d addresses are kept", callers, addresses)
	}
}

func TestWrongKeysByAddress(t *testing.T) {
	l := newLimited(t, serve.Rate{}, serve.Rate{PerSecond: 0.1, Burst: 1})
	status := func(secret, remote string) int {
		return l.get("/v1/widgets", "a", secret,
			remote).Code
	}
	for _, try := range []struct {
		secret, remote string
		want           int
	}{
		{"wrong", "192.0.2.1:1", 401}, {"wrong", "192.0.2.1:2", 429}, {key, "192.0.2.1:3", 429},
		{key, "192.0.2.2:1", 204},
		{"", "[2001:db8::1]:1", 401}, {"", "[2001:db8::2]:1", 429},
		{key, "[2001:db8:0:0:ffff::3]:1", 429}, {key, "[2001:db8:0:1::1]:1", 204},
		{"wrong", "[::ffff:192.0.2.9]:1", 401}, {"wrong", "[::ffff:192.0.2.10]:1", 401},
		{"wrong", "[fe80::1%eth0]:1", 401}, {"wrong", "[fe80::2%eth1]:1", 429},
	} {
		if got := status(try.secret, try.remote); got != try.want {
			t.Errorf("key %q from %s: %d, want %d", try.secret, try.remote, got, try.want)
		}
	}
	if w := l.get("/uncounted", "a", key, "192.0.2.1:4"); w.Code != http.StatusTooManyRequests ||
		w.Header().Get("Retry-After") != "10" {
		t.Errorf("a route outside the document: %d %v", w.Code, w.Header())
	}
}
