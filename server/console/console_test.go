package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/console"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a server with the console before an API that reports who calls it.
type service struct {
	*httptest.Server
	console *console.Console
}

func start(t *testing.T, options console.Options) *service {
	t.Helper()
	return startAudited(t, options, nil)
}

func startAudited(t *testing.T, options console.Options, audit serve.AuditLog) *service {
	t.Helper()
	if options.Identify == nil {
		options.Identify = func(_ *http.Request, key string) (lifecycle.Principal, error) {
			if role, ok := strings.CutSuffix(key, "-key"); ok {
				return lifecycle.Principal{
					Name: "holder of " + key,
					Role: lifecycle.Role(role),
				}, nil
			}
			return lifecycle.Principal{}, serve.Unauthorized("body/key: is not a valid API key")
		}
	}
	c, err := console.New(options)
	if err != nil {
		t.Fatal(err)
	}
	server, err := serve.New(serve.Options{Rules: rules.Lifecycle(), AuditLog: audit})
	if err != nil {
		t.Fatal(err)
	}
	c.Register(server)
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1" && !strings.HasPrefix(r.URL.Path, "/v1/") {
			server.ServeHTTP(w, r)
			return
		}
		principal, ok, err := console.Caller(r.Context())
		if r.URL.Path == "/v1/wait" && err == nil {
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			fmt.Fprint(w, context.Cause(r.Context()))
			return
		}
		json.NewEncoder(w).
			Encode(seen{
				principal.Name, string(principal.Role), ok, fmt.Sprint(err), r.URL.String(), r.Header,
			})
	})
	s := &service{httptest.NewServer(c.Handler(next)), c}
	t.Cleanup(func() {
		c.Close()
		s.Server.Close()
	})
	return s
}

// seen is a request as the API gets it.
type seen struct {
	Name, Role string
	Session    bool
	Err        string
	URL        string
	Header     http.Header
}

// browser sends requests with a session.
type browser struct {
	*service
	cookie *http.Cookie
	token  string
}

// send sends a request; headers are pairs of name and value, of which an empty value takes the
// header away.
func (b browser) send(t *testing.T, method, target, body string, headers ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, b.URL+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Sandbox-Console", b.token)
	if b.cookie != nil {
		r.Header.Set("Cookie", b.cookie.Name+"="+b.cookie.Value)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Del(headers[i])
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	response, err := b.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func read[T any](t *testing.T, response *http.Response) (value T) {
	t.Helper()
	if err := json.NewDecoder(response.Body).Decode(&value); err != nil {
		t.Fatalf("%s: %v", response.Status, err)
	}
	return value
}

// asks returns how the API sees a request below /console/api.
func (b browser) asks(t *testing.T, path string, headers ...string) seen {
	t.Helper()
	return read[seen](t, b.send(t, http.MethodGet, "/console/api"+path, "", headers...))
}

func (b browser) post(t *testing.T, path, body string, headers ...string) *http.Response {
	t.Helper()
	return b.send(t, http.MethodPost, path, body, headers...)
}

func (s *service) signIn(t *testing.T, key string, headers ...string) browser {
	t.Helper()
	response := browser{service: s}.post(t, "/console/session", `{"key": "`+key+`"}`, headers...)
	if response.StatusCode != http.StatusCreated {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("sign in: %s %s", response.Status, body)
	}
	answer := read[struct{ Token string }](t, response)
	return browser{s, response.Cookies()[0], answer.Token}
}

func TestSession(t *testing.T) {
	s := start(t, console.Options{})
	refused := browser{service: s}.post(t, "/console/session", `{"key": "wrong"}`)
	if refused.StatusCode != http.StatusUnauthorized || len(refused.Cookies()) > 0 {
		t.Errorf("a wrong key: %s, cookies %v", refused.Status, refused.Cookies())
	}
	b := s.signIn(t, "viewer-key")
	if c := b.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode ||
		c.Path != "/console" || c.Domain != "" || c.Secure || c.Expires.IsZero() {
		t.Errorf("the cookie is %s", c)
	}
	if c := s.signIn(t, "viewer-key", "X-Forwarded-Proto", "https").cookie; !c.Secure {
		t.Errorf("behind TLS the cookie is %s", c)
	}
	got := b.asks(t, "/v1/sandboxes?page=2", "SERVICE-API-KEY", "other")
	if got.Name != "holder of viewer-key" || got.Role != "viewer" || !got.Session ||
		got.Err != "<nil>" || got.URL != "/v1/sandboxes?page=2" {
		t.Errorf("the API sees %+v", got)
	}
	for _, name := range []string{"Cookie", "X-Sandbox-Console", "Origin"} {
		if got.Header.Get(name) != "" {
			t.Errorf("the API gets %s", name)
		}
	}
	shown := read[struct {
		KeyRequired bool
		Session     *struct{ Name, Role, Token string }
	}](t, b.send(t, http.MethodGet, "/console/session", ""))
	if !shown.KeyRequired || shown.Session == nil || shown.Session.Role != "viewer" ||
		shown.Session.Token != "" {
		t.Errorf("the page gets %+v", shown)
	}

	stream := b.send(t, http.MethodGet, "/console/api/v1/wait", "")
	left := b.send(t, http.MethodDelete, "/console/session", "")
	if left.StatusCode != http.StatusNoContent || left.Cookies()[0].Value != "" {
		t.Errorf("sign out: %s, cookies %v", left.Status, left.Cookies())
	}
	if end, err := io.ReadAll(stream.Body); err != nil || string(end) != "the session has ended" {
		t.Errorf("a stream of the ended session ends with %q, %v", end, err)
	}
	if got := b.asks(t, "/v1/sandboxes"); got.Name != "" || !strings.Contains(got.Err, "sign in") {
		t.Errorf("after signing out the API sees %+v", got)
	}
}

// TestWhatIsNotTheConsole: one of the two secrets is not enough, and nothing of another origin gets
// through with both.
// recorder is an audit log in memory.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) Intend(a serve.Admission) (uint64, func() error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, a.Operation+" by "+a.Principal.(lifecycle.Principal).Name)
	return uint64(len(r.seen)), func() error { return nil }, nil
}

func (*recorder) Conclude(serve.Admission, uint64, serve.Outcome) {}

// TestSignInIsAudited: a session is worth as much as the key that began it.
func TestSignInIsAudited(t *testing.T) {
	audit := &recorder{}
	s := startAudited(t, console.Options{}, audit)
	browser{service: s}.post(t, "/console/session", `{"key": "wrong"}`)
	s.signIn(t, "admin-key")
	audit.mu.Lock()
	defer audit.mu.Unlock()
	if want := []string{"signInToConsole by holder of admin-key"}; !slices.Equal(audit.seen, want) {
		t.Errorf("recorded are %q, want %q", audit.seen, want)
	}
}

func TestWhatIsNotTheConsole(t *testing.T) {
	s := start(t, console.Options{})
	b := s.signIn(t, "admin-key")
	other := s.signIn(t, "admin-key")
	for name, headers := range map[string][]string{
		"no cookie":                {"Cookie", ""},
		"no token":                 {"X-Sandbox-Console", ""},
		"another session's token":  {"X-Sandbox-Console", other.token},
		"a page of the same site":  {"Sec-Fetch-Site", "same-site"},
		"a page of another site":   {"Sec-Fetch-Site", "cross-site"},
		"an address that is typed": {"Sec-Fetch-Site", "none"},
		"another port of the host": {"Origin", "http://127.0.0.1:1"},
		"an opaque origin":         {"Origin", "null"},
		"another host":             {"Origin", "https://evil.example"},
		"the host without TLS":     {"Origin", s.URL, "X-Forwarded-Proto", "https"},
		"an upgrade":               {"Upgrade", "websocket", "Connection", "upgrade"},
	} {
		t.Run(name, func(t *testing.T) {
			got := b.asks(t, "/v1/sandboxes", headers...)
			if got.Name != "" || !got.Session || got.Err == "<nil>" {
				t.Errorf("the API sees %+v", got)
			}
			if name == "an upgrade" {
				return
			}
			response := b.post(t, "/console/tickets", `{"path": "/v1/x"}`, headers...)
			if response.StatusCode < 400 {
				t.Errorf("a ticket: %s", response.Status)
			}
		})
	}
	got := b.asks(t, "/v1/sandboxes", "Origin", b.URL, "Sec-Fetch-Site", "same-origin")
	if got.Err != "<nil>" {
		t.Errorf("the console's own page: %+v", got)
	}
	// A page on another port of the host can set cookies of the same name.
	two := "sandbox-console=other; " + b.cookie.Name + "=" + b.cookie.Value
	if got := b.asks(t, "/v1/sandboxes", "Cookie", two); got.Err != "<nil>" {
		t.Errorf("with a second cookie: %+v", got)
	}
	for name, headers := range map[string][]string{
		"a form":                   {"Content-Type", "text/plain"},
		"a page of another site":   {"Sec-Fetch-Site", "cross-site"},
		"a page of another origin": {"Origin", "https://evil.example"},
	} {
		key := `{"key": "admin-key"}`
		response := browser{service: s}.post(t, "/console/session", key, headers...)
		if response.StatusCode < 400 || len(response.Cookies()) > 0 {
			t.Errorf("signing in by %s: %s", name, response.Status)
		}
	}
	// Without a session of its own nothing else is reached.
	for _, path := range []string{
		"/console/api/metrics", "/console/api/console", "/console/apis", "/console/api",
	} {
		response := b.send(t, http.MethodGet, path, "")
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

func TestReach(t *testing.T) {
	b := start(t, console.Options{}).signIn(t, "admin-key")
	for path, ok := range map[string]bool{
		"/v1/sandboxes/a":                          true,
		"/v1/sandboxes/a/proxy/44772":              true,
		"/v1/sandboxes/a/proxy/44772/files":        true,
		"/v1/sandboxes/a/proxy/8000/":              false,
		"/v1/sandboxes/a/proxy/447720/":            false,
		"/v1/sandboxes/a/proxy":                    false,
		"/v1/sandboxes/a/%70roxy/8000/":            false,
		"/v1/sandboxes/a/proxy/44772/proxy/8000/":  false,
		"/v1/sandboxes/a/proxy/44772/%70roxy/8000": false,
	} {
		if got := b.asks(t, path); (got.Err == "<nil>") != ok {
			t.Errorf("%s: %s", path, got.Err)
		}
	}
}

func TestTickets(t *testing.T) {
	s := start(t, console.Options{})
	b := s.signIn(t, "user-key")
	const path = "/v1/sandboxes/a/proxy/44772/pty/1/attach"
	ticket := func() string {
		answer := b.post(t, "/console/tickets", `{"path": "`+path+`"}`)
		return read[struct{ Ticket string }](t, answer).Ticket
	}
	// A browser sends neither the token nor the ticket by itself.
	attach := func(b browser, path, ticket string, headers ...string) seen {
		handshake := []string{
			"Upgrade", "websocket", "Connection", "upgrade", "X-Sandbox-Console", "", "Origin", b.URL,
		}
		return b.asks(t, path+"?a=1&console-ticket="+ticket, append(handshake, headers...)...)
	}
	good := ticket()
	got := attach(b, path, good)
	if got.Name != "holder of user-key" || got.Err != "<nil>" || got.URL != path+"?a=1" ||
		got.Header.Get("Upgrade") != "websocket" {
		t.Errorf("the API sees %+v", got)
	}
	for name, got := range map[string]seen{
		"used":              attach(b, path, good),
		"none":              attach(b, path, ""),
		"another path":      attach(b, path+"x", ticket()),
		"another session":   attach(s.signIn(t, "user-key"), path, ticket()),
		"without a cookie":  attach(b, path, ticket(), "Cookie", ""),
		"from elsewhere":    attach(b, path, ticket(), "Origin", "http://evil.example"),
		"without an origin": attach(b, path, ticket(), "Origin", ""),
		"no upgrade":        b.asks(t, path+"?console-ticket="+ticket(), "X-Sandbox-Console", ""),
	} {
		if got.Name != "" || got.Err == "<nil>" {
			t.Errorf("%s: the API sees %+v", name, got)
		}
	}
	first := ticket()
	for range 16 {
		ticket()
	}
	if got := attach(b, path, first); got.Err == "<nil>" {
		t.Error("the oldest of 17 tickets is still good")
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Run("the oldest of a key's", func(t *testing.T) {
		s := start(t, console.Options{})
		first, other := s.signIn(t, "user-key"), s.signIn(t, "admin-key")
		var last browser
		for range 32 {
			last = s.signIn(t, "user-key")
		}
		if got := first.asks(t, "/v1/sandboxes"); got.Name != "" {
			t.Error("the first of 33 sessions lives")
		}
		if other.asks(t, "/v1/sandboxes").Name == "" || last.asks(t, "/v1/sandboxes").Name == "" {
			t.Error("a session ended that should not")
		}
	})
	t.Run("after their time", func(t *testing.T) {
		b := start(t, console.Options{Lifetime: time.Millisecond}).signIn(t, "user-key")
		wait.Until(t, "the session has ended", func() bool { return b.asks(t, "/v1/sandboxes").Name == "" })
	})
	t.Run("with the service", func(t *testing.T) {
		s := start(t, console.Options{})
		b := s.signIn(t, "user-key")
		s.console.Close()
		if got := b.asks(t, "/v1/sandboxes"); got.Name != "" {
			t.Errorf("the API sees %+v", got)
		}
	})
}

func TestPage(t *testing.T) {
	b := browser{service: start(t, console.Options{Open: true})}
	first := b.send(t, http.MethodGet, "/console", "")
	second := b.send(t, http.MethodGet, "/console", "")
	policies := []string{
		first.Header.Get("Content-Security-Policy"),
		second.Header.Get("Content-Security-Policy"),
	}
	if policies[0] == policies[1] {
		t.Error("two pages have the same nonce")
	}
	for _, rule := range []string{
		"default-src 'none'", "script-src 'self';", "style-src 'self' 'nonce-",
		"connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
	} {
		if !strings.Contains(policies[0], rule) {
			t.Errorf("the policy %q lacks %q", policies[0], rule)
		}
	}
	for name, want := range map[string]string{
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff",
		"Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
		"Content-Type": "text/html; charset=UTF-8",
	} {
		if got := first.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	html, err := io.ReadAll(first.Body)
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(html), `"`) {
		if !strings.HasPrefix(part, "/console/assets/") {
			continue
		}
		response := b.send(t, http.MethodGet, part, "")
		kept := response.Header.Get("Cache-Control")
		if response.StatusCode != http.StatusOK || !strings.Contains(kept, "immutable") {
			t.Errorf("%s: %s, %s", part, response.Status, kept)
		}
	}
	shown := read[struct{ KeyRequired bool }](t, b.send(t, http.MethodGet, "/console/session", ""))
	if shown.KeyRequired {
		t.Error("a service without keys asks for one")
	}
}

// TestAddressWithASlash: what a user types with a slash at its end leads to the page.
func TestAddressWithASlash(t *testing.T) {
	t.Parallel()
	s := start(t, console.Options{})
	response, err := s.Client().Get(s.URL + "/console/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Request.URL.Path != "/console" {
		t.Errorf("%s: %s", response.Request.URL, response.Status)
	}
}
