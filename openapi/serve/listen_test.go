package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

// get sends a request that is still answered while the service stops.
func (s *service) get(path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(s.t.Context(), "GET", s.url+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set(keyHeader, key)
	return s.client.Do(r)
}

func TestStopLetsStreamsFinish(t *testing.T) {
	h, _ := streaming(respond.EventStreamOptions{}, nil)
	h["watchWidgets"] = func(c echo.Context) error {
		ctx := c.Request().Context()
		stream := respond.NewEventStream(ctx, c.Response(), respond.EventStreamOptions{})
		if err := stream.Flush(); err != nil {
			return err
		}
		select {
		case <-listen.Draining(ctx):
		case <-ctx.Done():
		}
		stream.Data([]byte("goodbye"))
		return stream.Flush()
	}
	s := start(t, h, setup{grace: 30 * time.Second})
	response, err := s.get("/v1/watch")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	s.stop()
	data, err := io.ReadAll(response.Body)
	if err != nil || string(data) != "data: goodbye\n\n" {
		t.Errorf("the stream ended with %q, %v", data, err)
	}
	if err := wait.For(t, "the end of the server", s.served); err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if _, err := net.Dial("tcp", s.addr); err == nil {
		t.Error("still accepting after the stop")
	}
}

func TestStopWaitsForRequestsInFlight(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := start(t, handlers{"getWidget": func(c echo.Context) error {
		close(entered)
		<-release
		return c.String(http.StatusOK, "done")
	}}, setup{grace: 30 * time.Second})
	type result struct {
		answer string
		err    error
	}
	got := make(chan result, 1)
	go func() {
		response, err := s.get("/v1/widgets/w1")
		if err != nil {
			got <- result{err: err}
			return
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		got <- result{string(data), err}
	}()
	wait.For(t, "the request to be handled", entered)
	s.stop()
	wait.Until(t, "the listener to close", func() bool {
		conn, err := net.Dial("tcp", s.addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-s.served:
		t.Fatalf("Serve returned %v with a request in flight", err)
	default:
	}
	close(release)
	if r := wait.For(t, "the answer", got); r.answer != "done" || r.err != nil {
		t.Errorf("got %q, %v", r.answer, r.err)
	}
	if err := wait.For(t, "the end of the server", s.served); err != nil {
		t.Errorf("Serve returned %v", err)
	}
}

func TestStopCutsOffWhatOutlastsTheGrace(t *testing.T) {
	for name, grace := range map[string]time.Duration{"none": 0, "short": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			cause := make(chan error, 1)
			h := handlers{"watchWidgets": func(c echo.Context) error {
				ctx := c.Request().Context()
				stream := respond.NewEventStream(ctx, c.Response(), respond.EventStreamOptions{})
				if err := stream.Flush(); err != nil {
					return err
				}
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return stream.Flush()
			}}
			s := start(t, h, setup{grace: grace})
			response, err := s.get("/v1/watch")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			stopped := time.Now()
			s.stop()
			if err := wait.For(t, "the end of the server", s.served); err != nil {
				t.Errorf("Serve returned %v", err)
			}
			if took := time.Since(stopped); took < grace || took > grace+30*time.Second {
				t.Errorf("stopped after %v with a grace of %v", took, grace)
			}
			// Serve has waited for the handler, so its cause is there.
			select {
			case err := <-cause:
				if !strings.Contains(err.Error(), "stopping") {
					t.Errorf("cause %v", err)
				}
			default:
				t.Error("Serve returned before its handler")
			}
			if data, err := io.ReadAll(response.Body); err == nil {
				t.Errorf("a stream that was cut off ended cleanly, after %q", data)
			}
			s.logs.find(t, "requests cut off: the grace is over", "level", "warn")
		})
	}
}

// A client that is cut off before its answer must not take silence for success.
func TestCutOffRequestDoesNotSucceed(t *testing.T) {
	entered := make(chan struct{})
	s := start(t, handlers{"getWidget": func(c echo.Context) error {
		close(entered)
		<-c.Request().Context().Done()
		return c.Request().Context().Err()
	}}, setup{})
	status := make(chan int, 1)
	go func() {
		response, err := s.get("/v1/widgets/w1")
		if err != nil {
			status <- 0
			return
		}
		response.Body.Close()
		status <- response.StatusCode
	}()
	wait.For(t, "the request to be handled", entered)
	s.stop()
	if got := wait.For(t, "the answer", status); got != 0 && got != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503 or a closed connection", got)
	}
	if line := s.logs.find(t, "request", "route",
		"/v1/widgets/:widgetId"); line["status"] != 503.0 {
		t.Errorf("access line %v, want status 503", line)
	}
}

func TestIdleConnectionsDoNotDelayTheStop(t *testing.T) {
	s := start(t, nil, setup{grace: time.Minute})
	s.request("GET", "/health", "")
	stopped := time.Now()
	s.stop()
	if err := wait.For(t, "the end of the server", s.served); err != nil || time.Since(stopped) > 30*time.Second {
		t.Errorf("stopped after %v with %v", time.Since(stopped), err)
	}
}

// TestOptionsOfNoPath: the handler answers what net/http would answer by itself.
func TestOptionsOfNoPath(t *testing.T) {
	s := start(t, nil, setup{})
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var problem struct{ Code string }
	if err := json.NewDecoder(response.Body).Decode(&problem); err != nil || problem.Code == "" ||
		response.Header.Get("X-Request-ID") == "" || response.StatusCode != http.StatusNotFound {
		t.Errorf("%s, %v, code %q (%v)", response.Status, response.Header, problem.Code, err)
	}
}

type brokenListener struct{ net.Listener }

var errAccept = errors.New("out of file descriptors for good")

func (brokenListener) Accept() (net.Conn, error) { return nil, errAccept }

func TestServeReportsABrokenListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = listen.Serve(t.Context(), brokenListener{ln}, http.NotFoundHandler(), listen.Options{})
	if !errors.Is(err, errAccept) {
		t.Errorf("error %v, want the listener's", err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is left open: %v", err)
	}
}

func TestServeWithAnEndedContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := listen.Serve(ctx, ln, http.NotFoundHandler(), listen.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is left open: %v", err)
	}
}

func TestDrainingOutsideOfServeBlocks(t *testing.T) {
	if listen.Draining(t.Context()) != nil {
		t.Error("draining without a server")
	}
	ctx, cancel := listen.UntilDraining(t.Context())
	if ctx.Err() != nil {
		t.Error("a context ended without a server")
	}
	cancel()
	if ctx.Err() == nil {
		t.Error("cancel ended nothing")
	}
}

func TestContextUntilDraining(t *testing.T) {
	waits := make(chan struct{})
	s := start(t, handlers{"getWidget": func(c echo.Context) error {
		ctx, cancel := listen.UntilDraining(c.Request().Context())
		defer cancel()
		close(waits)
		<-ctx.Done()
		if err := c.Request().Context().Err(); err != nil {
			return err
		}
		return c.String(http.StatusOK, "in peace")
	}}, setup{grace: time.Minute})
	answered := make(chan string, 1)
	go func() { answered <- s.request("GET", "/v1/widgets/w1", "").body }()
	wait.For(t, "the request to wait", waits)
	s.stop()
	if got := wait.For(t, "the answer", answered); got != "in peace" {
		t.Errorf("got %q", got)
	}
}

// TestAbortedAnswerOfHTTP10: an answer without a length, which ends with its connection, does not
// look whole when it is not.
func TestAbortedAnswerOfHTTP10(t *testing.T) {
	t.Parallel()
	address := patient(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
	}), time.Minute)
	for path, want := range map[string]error{"/whole": nil, "/cut": syscall.ECONNRESET} {
		conn := dial(t, address)
		fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
		response, err := http.ReadResponse(conn.answer, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if data, err := io.ReadAll(response.Body); string(data) != "half" || !errors.Is(err, want) {
			t.Errorf("%s: read %q, %v; want %v", path, data, err, want)
		}
	}
}
