package ingress_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/server/ingress"
	"sandbox.internal/server/reach"
	"sandbox.internal/test/wait"
)

const token = "the-token-of-the-sandbox"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func signing(t testing.TB) (file string, keys reach.Keys) {
	t.Helper()
	const key = "the-signing-key-of-these-tests-0123456789"
	file = filepath.Join(t.TempDir(), "signing.key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := reach.ParseKeys([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return file, keys
}

// running is an ingress that serves.
type running struct {
	url, admin string
	mode       ingress.Mode
	log        *logBuffer
	signing    reach.Keys
	app        *ingress.App
	stop       context.CancelFunc
	stopped    chan error
}

// start runs an ingress with settings that change makes of the usual ones.
func start(t testing.TB, mode ingress.Mode, change func(*ingress.Settings)) *running {
	t.Helper()
	settings := ingress.DefaultSettings()
	settings.Listen, settings.Admin, settings.Mode, settings.Grace = "127.0.0.1:0", "127.0.0.1:0", mode, wait.Patience()
	in := &running{mode: mode, log: &logBuffer{}, stopped: make(chan error, 1)}
	settings.SigningKey, in.signing = signing(t)
	if mode == ingress.ModeWildcard {
		settings.Domain = "*." + domain
	}
	change(&settings)
	var err error
	if in.app, err = ingress.New(settings, zerolog.New(in.log).Level(zerolog.DebugLevel)); err != nil {
		t.Fatal(err)
	}
	in.url, in.admin = "http://"+in.app.Addr(), "http://"+in.app.AdminAddr()
	ctx, cancel := context.WithCancel(context.Background())
	in.stop = cancel
	go func() { in.stopped <- in.app.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := wait.For(t, "the end of the ingress", in.stopped); err != nil {
			t.Error(err)
		}
		in.stopped <- nil
	})
	return in
}

// routes writes a file with one route to a daemon that the handler is.
func routes(t testing.TB, handler http.Handler, more string) string {
	t.Helper()
	daemon := httptest.NewServer(handler)
	t.Cleanup(daemon.Close)
	return routeFile(t, fmt.Sprintf("[[routes]]\nsandbox = %q\naddress = %q\ntoken = %q\n%s", box, daemon.Listener.Addr(), token, more))
}

func routeFile(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "routes.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// static runs an ingress with a route to a daemon that the handler is.
func static(t testing.TB, mode ingress.Mode, handler http.Handler) *running {
	t.Helper()
	file := routes(t, handler, "")
	return start(t, mode, func(s *ingress.Settings) { s.Routes = file })
}

// request makes a request for a port, with headers given as name, value, name, value.
func (in *running) request(t testing.TB, method, id string, port int, path string, body io.Reader, headers ...string) *http.Request {
	t.Helper()
	name := fmt.Sprintf("%s-%d", id, port)
	if in.mode == ingress.ModeURI {
		path = fmt.Sprintf("/%s/%d%s", id, port, path)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, in.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	switch in.mode {
	case ingress.ModeWildcard:
		r.Host = name + "." + domain
	case ingress.ModeHeader:
		r.Header.Set("Service-Ingress-To", name)
	}
	r.Header.Set("X-EXECD-ACCESS-TOKEN", token)
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	return r
}

// answer is a response whose body was read.
type answer struct {
	*http.Response
	body string
}

func do(t testing.TB, r *http.Request) answer {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response, string(body)}
}

func (in *running) get(t testing.TB, path string, headers ...string) answer {
	t.Helper()
	return do(t, in.request(t, http.MethodGet, box, 8000, path, nil, headers...))
}

func (a answer) wantProblem(t testing.TB, status int, code string, words ...string) {
	t.Helper()
	var body map[string]string
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%d %s: %v", a.StatusCode, a.body, err)
	}
	if a.StatusCode != status || body["code"] != code || len(body) != 3 || body["detail"] != body["message"] {
		t.Errorf("%d %s, want %d %s", a.StatusCode, a.body, status, code)
	}
	for _, word := range words {
		if !strings.Contains(body["message"], word) {
			t.Errorf("%q does not say %q", body["message"], word)
		}
	}
	if len(a.Header["X-Request-Id"]) != 1 {
		t.Errorf("X-Request-ID %q, want one", a.Header["X-Request-Id"])
	}
}

// health returns what /healthz and /metrics say.
func (in *running) admins(t testing.TB, path string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, r)
}

// showRequest answers with what has arrived.
func showRequest(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	_ = r.Header.Write(w) // a client that is gone shows on its own side
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *logBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}
