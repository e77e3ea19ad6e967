package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/test/wait"
)

var (
	errAbsent = errors.New("no such widget")
	errBusy   = errors.New("busy")
	errLost   = errors.New("disk /dev/sdx is on fire")
)

func problems(err error) (serve.Problem, bool) {
	switch {
	case errors.Is(err, errAbsent):
		return serve.Problem{Status: http.StatusNotFound, Code: "WIDGET_NOT_FOUND",
			Message: err.Error()}, true
	case errors.Is(err, errBusy):
		return serve.Problem{Status: http.StatusConflict, Message: "busy",
			RetryAfter: 1200 * time.Millisecond}, true
	case errors.Is(err, errLost):
		return serve.Problem{Status: http.StatusInternalServerError, Code: "STORAGE_ERROR",
			Message: err.Error()}, true
	}
	return serve.Problem{}, false
}

func failing(err error) handlers {
	return handlers{"getWidget": func(echo.Context) error { return err }}
}

func TestErrorsBecomeProblems(t *testing.T) {
	cases := map[string]struct {
		err     error
		status  int
		code    string
		message string
		retry   string
	}{
		"domain": {fmt.Errorf("get w1: %w", errAbsent), 404, "WIDGET_NOT_FOUND",
			"get w1: no such widget", ""},
		"retry later": {errBusy, 409, "CONFLICT", "busy", "2"},
		"problem": {fmt.Errorf("convert: %w",
			serve.Invalid("body/cpu: %q has no unit", "500")), 400, "INVALID_REQUEST_BODY",
			`body/cpu: "500" has no unit`, ""},
		"echo": {echo.NewHTTPError(400, "Invalid format for parameter x"), 400,
			"INVALID_REQUEST_BODY", "Invalid format for parameter x", ""},
		"echo, no text": {echo.ErrUnsupportedMediaType, 415, "UNSUPPORTED_MEDIA_TYPE",
			"Unsupported Media Type", ""},
		"too large": {fmt.Errorf("store: %w", &http.MaxBytesError{Limit: 7}), 413,
			"REQUEST_TOO_LARGE", "body: must be at most 7 bytes", ""},
		"unknown": {errors.New("password is hunter2"), 500, "BROKEN",
			"internal error; see the service's log for request r1", ""},
		"domain's 500": {errLost, 500, "STORAGE_ERROR",
			"internal error; see the service's log for request r1", ""},
		"deadline": {context.DeadlineExceeded, 500, "BROKEN",
			"internal error; see the service's log for request r1", ""},
		"someone else's": {context.Canceled, 500, "BROKEN",
			"internal error; see the service's log for request r1", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := start(t, failing(c.err), setup{options: func(o *serve.Options) {
				o.Problem, o.InternalCode = problems, "BROKEN"
			}})
			got := s.request("GET", "/v1/widgets/w1", "", "X-Request-ID: r1")
			code, message := got.problem(t)
			if got.StatusCode != c.status || code != c.code || message != c.message {
				t.Errorf("%d %s %q, want %d %s %q", got.StatusCode, code, message, c.status, c.code,
					c.message)
			}
			if retry := got.Header.Get("Retry-After"); retry != c.retry {
				t.Errorf("Retry-After %q, want %q", retry, c.retry)
			}
			if c.status == 500 {
				line := s.logs.find(t, "request failed", "request_id", "r1")
				if line["error"] != c.err.Error() || line["level"] != "error" {
					t.Errorf("log line %v, want the cause %q", line, c.err)
				}
			}
		})
	}
}

func TestErrorBodyIsTheServices(t *testing.T) {
	s := start(t, failing(errAbsent), setup{options: func(o *serve.Options) {
		o.Problem = problems
		o.Body = func(p serve.Problem) any {
			return map[string]string{"code": p.Code, "message": p.Message, "detail": p.Message}
		}
	}})
	want := `{"code":"WIDGET_NOT_FOUND","detail":"no such widget","message":"no such widget"}`
	if got := s.request("GET", "/v1/widgets/w1", ""); got.body != want {
		t.Errorf("body %s, want %s", got.body, want)
	}
}

func TestRoutingErrors(t *testing.T) {
	s := start(t, nil, setup{})
	got := s.request("GET", "/v2/nothing", "")
	code, message := got.problem(t)
	if got.StatusCode != 404 || code != "NOT_FOUND" || message != "/v2/nothing: no such path" {
		t.Errorf("%d %s %q", got.StatusCode, code, message)
	}
	got = s.request("PUT", "/v1/widgets", validWidget)
	code, message = got.problem(t)
	if got.StatusCode != 405 || code != "METHOD_NOT_ALLOWED" ||
		message != "/v1/widgets: method PUT is not allowed, only OPTIONS, GET, POST" {
		t.Errorf("%d %s %q", got.StatusCode, code, message)
	}
	if allow := got.Header.Get("Allow"); allow != "OPTIONS, GET, POST" {
		t.Errorf("Allow %q", allow)
	}
}

func TestHead(t *testing.T) {
	s := start(t, handlers{"getHealth": func(c echo.Context) error {
		return c.JSON(http.StatusOK, map[string]string{"status": "healthy"})
	}}, setup{
		options: func(o *serve.Options) { o.Problem = problems },
		routes: func(s *serve.Server) {
			s.Echo().Any("/proxy/*", func(c echo.Context) error {
				c.Response().Header().Set("X-Method", c.Request().Method)
				return c.NoContent(http.StatusOK)
			})
		},
	})
	if got := s.request("HEAD", "/health", ""); got.StatusCode != 200 || got.body != "" ||
		got.Header.Get("Content-Type") == "" {
		t.Errorf("/health: %d %q %v", got.StatusCode, got.body, got.Header)
	}
	// The guard still stands before the handler, and errors have no body either.
	if got := s.request("HEAD", "/v1/widgets", "", keyHeader+":"); got.StatusCode != 401 ||
		got.body != "" {
		t.Errorf("without a key: %d %q", got.StatusCode, got.body)
	}
	if got := s.request("HEAD", "/v1/widgets?page=0", ""); got.StatusCode != 400 ||
		got.ContentLength <= 0 {
		t.Errorf("invalid: %d, length %d", got.StatusCode, got.ContentLength)
	}
	if got := s.request("HEAD", "/v1/upload", ""); got.StatusCode != 405 {
		t.Errorf("no GET there: %d, want 405", got.StatusCode)
	}
	// A stream has no end that a HEAD could wait for.
	if got := s.request("HEAD", "/v1/watch", ""); got.StatusCode != 405 ||
		got.Header.Get("Allow") != "GET" {
		t.Errorf("stream: %d, Allow %q", got.StatusCode, got.Header.Get("Allow"))
	}
	if got := s.request("HEAD", "/proxy/80/", ""); got.Header.Get("X-Method") != "HEAD" {
		t.Errorf("a route with its own HEAD was called with %s", got.Header.Get("X-Method"))
	}
}

func TestPanicIsAnswered(t *testing.T) {
	s := start(t, handlers{"getWidget": func(echo.Context) error { panic("oh no") }}, setup{})
	got := s.request("GET", "/v1/widgets/w1", "", "X-Request-ID: p1")
	code, message := got.problem(t)
	if got.StatusCode != 500 || code != "INTERNAL_ERROR" || strings.Contains(message, "oh no") {
		t.Errorf("%d %s %q", got.StatusCode, code, message)
	}
	if got.Header.Get("X-Request-ID") != "p1" {
		t.Error("the answer lost its request id")
	}
	line := s.logs.find(t, "handler panicked", "request_id", "p1")
	if line["error"] != "panic: oh no" ||
		!strings.Contains(fmt.Sprint(line["stack"]), "TestPanicIsAnswered") {
		t.Errorf("log line %v, want the value and the stack", line)
	}
	if again := s.request("GET", "/health", ""); again.StatusCode != 204 {
		t.Errorf("after the panic: status %d", again.StatusCode)
	}
}

// Once the response has begun, its client must not take what it got for the whole.
func TestFailureAfterTheHeaderCutsTheConnection(t *testing.T) {
	begun := func(c echo.Context) {
		c.Response().WriteHeader(http.StatusOK)
		_, _ = c.Response().Write([]byte("half of"))
		c.Response().Flush()
	}
	cases := map[string]struct {
		handler echo.HandlerFunc
		message string
	}{
		"panic": {func(c echo.Context) error { begun(c); panic("oh no") }, "handler panicked"},
		"error": {func(c echo.Context) error { begun(c); return errLost }, "response cut short"},
		"abort": {func(c echo.Context) error { begun(c); panic(http.ErrAbortHandler) }, "request"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := start(t, handlers{"getWidget": c.handler}, setup{})
			r, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/widgets/w1", nil)
			r.Header = http.Header{keyHeader: {key}, "X-Request-Id": {"cut"}}
			response, err := s.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			data, err := io.ReadAll(response.Body)
			if string(data) != "half of" || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read %q, error %v; want half and an unexpected end", data, err)
			}
			s.logs.find(t, c.message, "request_id", "cut")
			s.logs.find(t, "request", "request_id", "cut")
			if strings.Contains(s.logs.String(), `"source":"net/http"`) {
				t.Errorf("net/http complains: %s", s.logs)
			}
		})
	}
}

func TestClientThatLeftIsNoError(t *testing.T) {
	entered := make(chan struct{})
	s := start(t, handlers{"getWidget": func(c echo.Context) error {
		close(entered)
		<-c.Request().Context().Done()
		return fmt.Errorf("engine: inspect: %w", c.Request().Context().Err())
	}}, setup{})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn,
		"GET /v1/widgets/w1 HTTP/1.1\r\nHost: x\r\n%s: %s\r\nX-Request-ID: left\r\n\r\n", keyHeader,
		key)
	wait.For(t, "the request to be handled", entered)
	conn.Close()
	line := s.logs.find(t, "request", "request_id", "left")
	if line["status"] != 499.0 || line["level"] != "info" {
		t.Errorf("access line %v, want status 499 at info", line)
	}
	if strings.Contains(s.logs.String(), `"level":"error"`) {
		t.Errorf("logged as an error: %s", s.logs)
	}
}
