package serve_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
)

// continued is a handler whose events are written by write.
func continued(write func(context.Context, *respond.EventStream) error) handlers {
	return handlers{"watchWidgets": func(c echo.Context) error {
		c.Response().Header().Set("X-Early", "1")
		serve.LogField(c.Request().Context(), "widget", "w1")
		return serve.StreamEvents(c.Request().Context(), c.Response(), write)
	}}
}

func TestContinuedResponse(t *testing.T) {
	s := start(t, continued(func(ctx context.Context, stream *respond.EventStream) error {
		if listen.Draining(ctx) == nil && ctx.Value(http.ServerContextKey) == nil {
			return errors.New("the context is not the request's")
		}
		if serve.Request(ctx) != nil {
			return errors.New("the handler's request is still held")
		}
		stream.Event(1, []byte("one"))
		if err := stream.Flush(); err != nil {
			return err
		}
		stream.Event(2, []byte("two"))
		return stream.Flush()
	}), setup{})
	for range 2 { // the second on the same connection
		got := s.request("GET", "/v1/watch", "", "X-Request-ID: later")
		if got.StatusCode != 200 || got.body != "id: 1\ndata: one\n\nid: 2\ndata: two\n\n" {
			t.Errorf("%d %q", got.StatusCode, got.body)
		}
		for _, name := range []string{"X-Early", "X-Request-Id"} {
			if got.Header.Get(name) == "" {
				t.Errorf("there is no header %s", name)
			}
		}
		line := s.logs.find(t, "request", "request_id", "later")
		want := map[string]any{"status": 200.0, "bytes": float64(len(got.body)),
			"route": "/v1/watch", "operation": "watchWidgets", "widget": "w1"}
		for name, value := range want {
			if line[name] != value {
				t.Errorf("the access line has %s = %v, want %v", name, line[name], value)
			}
		}
	}
	if lines := strings.Count(s.logs.String(), `"message":"request"`); lines != 2 {
		t.Errorf("%d access lines for 2 requests", lines)
	}
}

// A stream whose request ended before it must not be taken for the whole.
func TestContinuedResponseThatOutlivesItsRequestIsCut(t *testing.T) {
	s := start(t, continued(func(ctx context.Context, stream *respond.EventStream) error {
		stream.Data([]byte("half of"))
		if err := stream.Flush(); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}), setup{})
	conn := announce(t, s.addr, "GET /v1/watch", keyHeader+": "+key)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	// net/http ends the request, although there still is a client that reads.
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream ends with %q, %v", data, err)
	}
}

// A rest that fails must not be taken for the whole.
func TestContinuedResponseThatFailsIsCut(t *testing.T) {
	begin := func(stream *respond.EventStream) {
		stream.Data([]byte("half of"))
		stream.Flush()
	}
	for name, c := range map[string]struct {
		write   func(context.Context, *respond.EventStream) error
		message string
	}{
		"error": {func(_ context.Context, s *respond.EventStream) error { begin(s); return errLost },
			"response cut short"},
		"panic": {func(_ context.Context, s *respond.EventStream) error { begin(s); panic("oh no") },
			"handler panicked"},
		"bug": {func(_ context.Context, s *respond.EventStream) error {
			begin(s)
			var none []int
			_ = none[s.Buffered()]
			return nil
		}, "handler panicked"},
		"abort": {func(_ context.Context, s *respond.EventStream) error {
			begin(s)
			panic(
				http.ErrAbortHandler)
		}, "request"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, continued(c.write), setup{})
			r, _ := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/watch", nil)
			r.Header = http.Header{keyHeader: {key}, "X-Request-Id": {"cut"}}
			response, err := s.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			data, err := io.ReadAll(response.Body)
			if string(data) != "data: half of\n\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
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
