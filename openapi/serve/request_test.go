package serve_test

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

var uuid4 = regexp.MustCompile(
	`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestRequestIDIsEchoedOrMade(t *testing.T) {
	s := start(t, nil, setup{})
	cases := map[string]struct {
		sent   string
		echoed bool
	}{
		"none":              {"", false},
		"usual":             {"abc-123", true},
		"all visible ASCII": {`!"#$%&'()*+,-./09:;<=>?@AZ[\]^_az{|}~`, true},
		"longest":           {strings.Repeat("x", 128), true},
		"too long":          {strings.Repeat("x", 129), false},
		"space":             {"a b", false},
		"not ASCII":         {"größe", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := s.request("GET", "/health", "",
				"X-Request-ID: "+c.sent).Header.Values("X-Request-ID")
			switch {
			case len(got) != 1:
				t.Errorf("X-Request-ID %q, want one", got)
			case c.echoed && got[0] != c.sent:
				t.Errorf("got %q, want %q back", got[0], c.sent)
			case !c.echoed && !uuid4.MatchString(got[0]):
				t.Errorf("got %q, want a UUID", got[0])
			}
		})
	}
}

func TestEveryResponseCarriesARequestID(t *testing.T) {
	s := start(t, handlers{"getWidget": func(echo.Context) error { panic("oh no") }}, setup{
		options: func(o *serve.Options) { o.MaxJSONBody = 10 },
	})
	seen := map[string]bool{}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/health", "", 204},
		{"GET", "/nothing", "", 404},
		{"PATCH", "/health", "", 405},
		{"OPTIONS", "/health", "", 204},
		{"GET", "/v1/widgets?page=0", "", 400},
		{"POST", "/v1/widgets", validWidget, 413},
		{"GET", "/v1/widgets/w1", "", 500},
	} {
		got := s.request(c.method, c.path, c.body)
		id := got.Header.Get("X-Request-ID")
		if got.StatusCode != c.status || !uuid4.MatchString(id) || seen[id] {
			t.Errorf("%s %s: status %d, id %q; want %d and a new UUID", c.method, c.path,
				got.StatusCode, id, c.status)
		}
		seen[id] = true
	}
}

func TestHandlersSeeTheRequest(t *testing.T) {
	var ctx context.Context
	s := start(t, handlers{"listWidgets": func(c echo.Context) error {
		// All that a strict handler gets.
		ctx = c.Request().Context()
		r := serve.Request(ctx)
		zerolog.Ctx(ctx).Info().Msg("from the handler")
		return c.String(http.StatusOK,
			serve.RequestID(ctx)+" "+r.Header.Get("Range")+" "+r.Host+" "+
				r.Header.Get("X-Request-ID"))
	}}, setup{})
	got := s.request("GET", "/v1/widgets", "", "X-Request-ID: r1", "Range: bytes=0-1")
	if want := "r1 bytes=0-1 " + s.addr + " r1"; got.body != want {
		t.Errorf("got %q, want %q", got.body, want)
	}
	s.logs.find(t, "from the handler", "request_id", "r1")

	outside := t.Context()
	serve.LogField(outside, "ignored", 1)
	if serve.RequestID(outside) != "" || serve.Request(outside) != nil ||
		serve.Principal(outside) != nil {
		t.Error("something is known outside of a request")
	}
}

// TestAfter: what is to be done after the request comes after the stream that goes on after the
// handler, and the last first.
func TestAfter(t *testing.T) {
	did := make(chan string, 4)
	note := func(ctx context.Context) {
		serve.After(ctx, func() { did <- "first" })
		serve.After(ctx, func() { did <- "last" })
	}
	streams := continued(func(_ context.Context, stream *respond.EventStream) error {
		did <- "stream"
		return stream.Flush()
	})
	watch := streams["watchWidgets"]
	s := start(t, handlers{
		"watchWidgets": func(c echo.Context) error { note(c.Request().Context()); return watch(c) },
		"getWidget":    func(c echo.Context) error { note(c.Request().Context()); panic("oh no") },
	}, setup{})
	for path, want := range map[string][]string{"/v1/watch": {"stream", "last", "first"}, "/v1/widgets/w1": {"last", "first"}} {
		s.request("GET", path, "")
		for _, want := range want {
			if got := wait.For(t, "what is done after the request", did); got != want {
				t.Errorf("%s: %q is done, want %q", path, got, want)
			}
		}
	}
	serve.After(t.Context(), func() { t.Error("something is done outside of a request") })
}

func TestAccessLog(t *testing.T) {
	s := start(t, handlers{
		"listWidgets": func(c echo.Context) error {
			ctx := c.Request().Context()
			serve.LogField(ctx, "sandbox_id", "w1")
			serve.LogField(ctx, "warm", true)
			return c.String(http.StatusOK, "twelve bytes")
		},
		"deleteWidget": func(echo.Context) error { return errLost },
	}, setup{})

	s.request("GET", "/v1/widgets?filter=s3cret", "", "X-Request-ID: a1",
		"Authorization: Bearer hunter2")
	line := s.logs.find(t, "request", "request_id", "a1")
	for field, want := range map[string]any{
		"level": "info", "method": "GET", "route": "/v1/widgets",
		"operation": "listWidgets", "status": 200.0, "bytes": 12.0, "remote": "127.0.0.1",
		"sandbox_id": "w1", "warm": true,
	} {
		if line[field] != want {
			t.Errorf("%s is %v, want %v", field, line[field], want)
		}
	}
	if took, ok := line["duration_ms"].(float64); !ok || took < 0 || took > 60_000 {
		t.Errorf("duration_ms is %v", line["duration_ms"])
	}

	s.request("DELETE", "/v1/widgets/w1?force=true", "", "X-Request-ID: a2")
	if line := s.logs.find(t, "request", "request_id", "a2"); line["level"] != "error" ||
		line["code"] != "INTERNAL_ERROR" {
		t.Errorf("a 500 is logged as %v", line)
	}
	s.request("POST", "/v1/widgets", `{"password":"s3cret"}`, "X-Request-ID: a3")
	if line := s.logs.find(t, "request", "request_id", "a3"); line["level"] != "info" ||
		line["code"] != "INVALID_REQUEST_BODY" {
		t.Errorf("a 400 is logged as %v", line)
	}
	s.request("GET", "/health", "", "X-Request-ID: a4")
	if line := s.logs.find(t, "request", "request_id", "a4"); line["level"] != "debug" {
		t.Errorf("a probe is logged as %v", line)
	}
	s.request("GET", "/nothing/5ecret", "", "X-Request-ID: a5")
	s.logs.find(t, "request", "request_id", "a5")
	s.request(strings.Repeat("X", 1000), "/health", "", "X-Request-ID: a6")
	if line := s.logs.find(t, "request", "request_id", "a6"); line["method"] !=
		strings.Repeat("X", 64) {
		t.Errorf("a method of 1000 bytes is logged as %v", line["method"])
	}

	for _, secret := range []string{"s3cret", "5ecret", "hunter2", key} {
		if strings.Contains(s.logs.String(), secret) {
			t.Errorf("the log contains %q:\n%s", secret, s.logs)
		}
	}
}

// A service of one handler has all that others have, whatever method and path a request comes with.
func TestHandleAll(t *testing.T) {
	s := start(t, nil, setup{routes: func(server *serve.Server) {
		server.HandleAll("doAnything", func(c echo.Context) error {
			c.SetPath("anywhere")
			serve.LogField(c.Request().Context(), "one", 1)
			switch c.Request().Method {
			case http.MethodDelete:
				return errLost
			case http.MethodPatch:
				panic("oh no")
			}
			for _, name := range []string{"two", "three", "four"} {
				serve.LogField(c.Request().Context(), name, name)
			}
			return c.String(http.StatusOK, c.Request().Method+" "+c.Request().RequestURI)
		})
	}})
	for _, method := range []string{"GET", "POST", "OWN"} {
		if got := s.request(method, "/v1/widgets/%61?b", "",
			"X-Request-ID: "+method); got.StatusCode != 200 ||
			got.body != method+" /v1/widgets/%61?b" || got.Header.Get("X-Request-ID") != method {
			t.Errorf("%s: %d %q, headers %v", method, got.StatusCode, got.body, got.Header)
		}
		line := s.logs.find(t, "request", "request_id", method)
		for field, want := range map[string]any{"route": "anywhere", "operation": "doAnything",
			"status": 200.0, "one": 1.0, "two": "two", "three": "three", "four": "four"} {
			if line[field] != want {
				t.Errorf("%s: %s is %v, want %v", method, field, line[field], want)
			}
		}
	}
	for _, method := range []string{"DELETE", "PATCH"} {
		got := s.request(method, "/", "", "X-Request-ID: "+method)
		if code, _ := got.problem(t); got.StatusCode != 500 || code != "INTERNAL_ERROR" {
			t.Errorf("%s: %d %s", method, got.StatusCode, got.body)
		}
		if line := s.logs.find(t, "request", "request_id", method); line["status"] != 500.0 ||
			line["one"] != 1.0 {
			t.Errorf("%s is logged as %v", method, line)
		}
	}
}
