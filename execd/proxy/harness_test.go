package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/execd/proxy"
	"sandbox.internal/test/wait"
)

const (
	selfPort    = 44772
	tokenHeader = "X-Test-Token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream starts a server of the sandbox and returns its port.
func upstream(t *testing.T, handler http.HandlerFunc) int {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr).Port
}

// execd starts the proxy as execd would: behind a layer that gives every answer its
// request id and takes the first status for the final one. Its own handler routes
// /proxy/ back to the proxy and answers everything else with what it got.
func execd(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	p := proxy.New(proxy.Options{
		Self:        mux,
		SelfPorts:   []int{selfPort},
		TokenHeader: tokenHeader,
		Logger:      zerolog.New(zerolog.NewTestWriter(t)),
		ErrorBody: func(w http.ResponseWriter, _ *http.Request, status int, code, message string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, "%s %s", code, message)
		},
	})
	mux.Handle("/proxy/", p)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "self %s %s %s", r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get(tokenHeader))
	})
	// Not behind mux, which would redirect a path with two slashes.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-ID")
		if id == "" {
			id = "made-here"
		}
		w.Header().Set("X-Request-ID", id)
		p.ServeHTTP(&commitOnce{ResponseWriter: w}, r)
	}))
	t.Cleanup(server.Close)
	return server
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
func raw(t *testing.T, server *httptest.Server, request string) net.Conn {
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
	return conn
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

func to(port int, path string) string { return "/proxy/" + strconv.Itoa(port) + path }
