package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	contract "sandbox.internal/openapi/document"
	"sandbox.internal/openapi/rules"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) {
	// net/http keeps a connection whose body was not read half open for 500 ms, and no
	// Close waits for that.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const (
	keyHeader = "X-Test-Key"
	key       = "open sesame"
)

// paths are the routes of testdata/widgets.yaml in echo's spelling.
var paths = map[string][2]string{
	"getHealth":    {"GET", "/health"},
	"listWidgets":  {"GET", "/v1/widgets"},
	"createWidget": {"POST", "/v1/widgets"},
	"getWidget":    {"GET", "/v1/widgets/:widgetId"},
	"deleteWidget": {"DELETE", "/v1/widgets/:widgetId"},
	"getPart":      {"GET", "/v1/widgets/:widgetId/parts/:number"},
	"renewWidget":  {"POST", "/v1/widgets/:widgetId/renew"},
	"uploadParts":  {"POST", "/v1/upload"},
	"watchWidgets": {"GET", "/v1/watch"},
}

// handlers by operationId; an operation without one answers 204.
type handlers map[string]echo.HandlerFunc

func document(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("testdata/widgets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

func rulesOf(t testing.TB, doc *openapi3.T) *rules.Contract {
	t.Helper()
	contract, err := contract.Rules(doc)
	if err != nil {
		t.Fatal(err)
	}
	return contract
}

// service is a running server with everything around it.
type service struct {
	t      testing.TB
	url    string
	addr   string
	logs   *logBuffer
	server *serve.Server
	client *http.Client
	stop   context.CancelFunc
	served chan error
}

type setup struct {
	options func(*serve.Options)
	routes  func(*serve.Server)
	grace   time.Duration
}

func start(t testing.TB, h handlers, with setup) *service {
	t.Helper()
	logs := &logBuffer{}
	options := serve.Options{
		Rules:        rulesOf(t, document(t)),
		Logger:       zerolog.New(logs).Level(zerolog.DebugLevel),
		Authenticate: serve.HeaderSecret(keyHeader, key),
		Quiet:        []string{"getHealth"},
	}
	if with.options != nil {
		with.options(&options)
	}
	server, err := serve.New(options)
	if err != nil {
		t.Fatal(err)
	}
	guards := server.OperationMiddlewares()
	for id, route := range paths {
		handler := h[id]
		if handler == nil {
			handler = func(c echo.Context) error { return c.NoContent(http.StatusNoContent) }
		}
		server.Echo().Add(route[0], route[1], handler, guards[id]...)
	}
	if with.routes != nil {
		with.routes(server)
	}
	s := serveHandler(t, server, with.grace, logs)
	s.server = server
	return s
}

func serveHandler(t testing.TB, handler http.Handler, grace time.Duration,
	logs *logBuffer) *service {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{
		t: t, url: "http://" + ln.Addr().String(), addr: ln.Addr().String(), logs: logs,
		client: &http.Client{Transport: &http.Transport{}, Timeout: wait.Patience()},
		stop:   cancel, served: make(chan error, 1),
	}
	go func() {
		s.served <- listen.Serve(ctx, ln, handler,
			listen.Options{Logger: zerolog.New(logs), Grace: grace})
		close(s.served)
	}()
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		cancel()
		for err := range s.served {
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	})
	return s
}

// answer is a response, read to its end.
type answer struct {
	*http.Response
	body string
}

func (a answer) problem(t testing.TB) (code, message string) {
	t.Helper()
	var body struct{ Code, Message string }
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("status %d, body %q: %v", a.StatusCode, a.body, err)
	}
	if got := a.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("error with Content-Type %q, want application/json", got)
	}
	return body.Code, body.Message
}

// request sends one with the key; header is "Name: value" each, and may take the key
// away by an empty value.
func (s *service) request(method, path, body string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set(keyHeader, key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ":")
		r.Header.Del(name)
		if value = strings.TrimSpace(value); value != "" {
			r.Header.Set(name, value)
		}
	}
	return s.do(r)
}

func (s *service) do(r *http.Request) answer {
	s.t.Helper()
	response, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{response, string(data)}
}

// logBuffer collects log lines.
type logBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

func (b *logBuffer) lines(t testing.TB) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for text := range strings.Lines(b.String()) {
		line := map[string]any{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("log line %q: %v", text, err)
		}
		lines = append(lines, line)
	}
	return lines
}

// find waits for a line with this message and field. The access line comes after
// the client has its answer.
func (b *logBuffer) find(t testing.TB, message, field string, value any) map[string]any {
	t.Helper()
	var found map[string]any
	wait.Until(t, "a log line "+message, func() bool {
		for _, line := range b.lines(t) {
			if line["message"] == message && line[field] == value {
				found = line
				return true
			}
		}
		return false
	})
	return found
}
