package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/server/proxy"
	"sandbox.internal/test/wait"
)

const (
	prefix = "/box/8000"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream starts a server to forward to and returns its host and port.
func upstream(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// forwarder starts a server that forwards everything to the target, behind a layer that
// gives every answer a request id and takes the first status for the final one, as the
// service's own layers do.
func forwarder(t *testing.T, target proxy.Target) *httptest.Server {
	t.Helper()
	p := proxy.New(zerolog.New(zerolog.NewTestWriter(t)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-ID", "made-here")
		once := &commitOnce{ResponseWriter: w}
		err := p.Forward(once, r, target)
		if err == nil {
			return
		}
		if once.committed {
			t.Errorf("an error after the answer has begun: %v", err)
		}
		status := http.StatusTeapot
		switch {
		case errors.Is(err, proxy.ErrNotConnected):
			status = http.StatusServiceUnavailable
		case errors.Is(err, proxy.ErrNoAnswer):
			status = http.StatusBadGateway
		case errors.Is(err, proxy.ErrRequestBody):
			status = http.StatusBadRequest
		case r.Context().Err() != nil:
			return
		}
		w.WriteHeader(status)
		fmt.Fprint(w, err)
	}))
	t.Cleanup(server.Close)
	return server
}

// to is the usual target: what the client calls prefix is /up of the server.
func to(address string) proxy.Target {
	return proxy.Target{Address: address, Path: "/up", Prefix: prefix}
}

// commitOnce treats the first status as the final one, as echo's response does.
type commitOnce struct {
	http.ResponseWriter
	committed bool
}

func (c *commitOnce) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *commitOnce) WriteHeader(status int) {
	if !c.committed {
		c.committed = true
		c.ResponseWriter.WriteHeader(status)
	}
}

func (c *commitOnce) Write(p []byte) (int, error) {
	c.committed = true
	return c.ResponseWriter.Write(p)
}

// raw sends a request as it is written and returns the connection, so that no client
// tidies up what the proxy must not.
func raw(t *testing.T, server *httptest.Server, request string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// answerOf reads the answer on a raw connection to its end.
func answerOf(t *testing.T, conn net.Conn) (*http.Response, string) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// get fetches a path with headers given as name, value, name, value.
func get(t *testing.T, server *httptest.Server, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return do(t, server, r)
}

func do(t *testing.T, server *httptest.Server, r *http.Request) (*http.Response, string) {
	t.Helper()
	response, err := server.Client().Transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}
