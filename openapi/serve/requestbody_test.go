package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/test/wait"
)

// announce connects and sends the head of a request whose body does not follow.
func announce(t *testing.T, address, line string, headers ...string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", line, strings.Join(headers, "\r\n"))
	return conn
}

// untilClosed returns what arrives until the connection is closed, which must be within limit.
func untilClosed(t *testing.T, conn net.Conn, limit time.Duration) string {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(limit))
	data, err := io.ReadAll(conn)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("not closed within %v: %v; it said %q", limit, err, data)
	}
	return string(data)
}

// TestBodiesThatNeverCome: connections that announce a body and send none are closed, whatever they
// may do, and the service answers others meanwhile.
func TestBodiesThatNeverCome(t *testing.T) {
	t.Parallel()
	s := start(t, nil, setup{})
	const connections = 200
	var open []net.Conn
	for i := range connections {
		line := []string{"POST /v1/widgets", "POST /v1/upload", "GET /health", "POST /nowhere"}[i%4]
		length := []string{"Content-Length: 100", "Transfer-Encoding: chunked",
			"Content-Length: 100000000"}[i%3]
		open = append(open, announce(t, s.addr, line, length, "Content-Type: application/json"))
	}
	withKey := announce(t, s.addr, "POST /v1/widgets", "Content-Length: 100",
		"Content-Type: application/json", keyHeader+": "+key)
	for range 20 {
		if got := s.request("GET", "/v1/widgets", ""); got.StatusCode != http.StatusNoContent {
			t.Errorf("meanwhile the service answers %d", got.StatusCode)
		}
	}
	for _, conn := range append(open, withKey) {
		untilClosed(t, conn, wait.Patience())
	}
}

// patient serves with short deadlines.
func patient(t *testing.T, handler http.Handler, limit time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- listen.Serve(ctx, listener, handler,
			listen.Options{Logger: zerolog.Nop(), BodyTimeout: limit})
	}()
	t.Cleanup(func() {
		cancel()
		if err := wait.For(t, "the end of the server", served); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return listener.Addr().String()
}

// contractServer is a server of the widgets whose uploads are read to their end.
func contractServer(t *testing.T) *serve.Server {
	t.Helper()
	server, err := serve.New(serve.Options{Rules: rulesOf(t, document(t)),
		Authenticate: serve.HeaderSecret(keyHeader, key)})
	if err != nil {
		t.Fatal(err)
	}
	guards := server.OperationMiddlewares()
	server.Echo().POST("/v1/upload", func(c echo.Context) error {
		n, err := io.Copy(io.Discard, c.Request().Body)
		if err != nil {
			return serve.Invalid("body: broke off")
		}
		return c.String(http.StatusOK, fmt.Sprint(n))
	}, guards["uploadParts"]...)
	server.Echo().POST("/v1/widgets",
		func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
		guards["createWidget"]...)
	return server
}

// TestSlowBodies: a small body has its time as a whole, and each part of an upload has it again.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	const limit = 400 * time.Millisecond
	address := patient(t, contractServer(t), limit)
	auth := keyHeader + ": " + key

	t.Run("JSON that trickles", func(t *testing.T) {
		conn := announce(t, address, "POST /v1/widgets", "Content-Length: 1000",
			"Content-Type: application/json", auth)
		began := time.Now()
		done := make(chan string)
		go func() { done <- untilClosed(t, conn, time.Minute) }()
		tick := time.NewTicker(limit / 10)
		defer tick.Stop()
		for {
			select {
			case said := <-done:
				if !strings.HasPrefix(said, "HTTP/1.1 400 ") ||
					!strings.Contains(said, "did not arrive in time") {
					t.Errorf("answered %q", said)
				}
				if took := time.Since(began); took < limit {
					t.Errorf("given up after %v", took)
				}
				return
			case <-tick.C:
				conn.Write([]byte(" ")) // fails when the server has closed
			}
		}
	})
	t.Run("an upload that goes on", func(t *testing.T) {
		const parts = 12
		conn := announce(t, address, "POST /v1/upload", fmt.Sprintf("Content-Length: %d", parts),
			"Content-Type: multipart/form-data", "Connection: close", auth)
		tick := time.NewTicker(limit / 4)
		defer tick.Stop()
		for range parts {
			<-tick.C
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if said := untilClosed(t, conn, time.Minute); !strings.HasSuffix(said, "\r\n\r\n12") {
			t.Errorf("answered %q", said)
		}
	})
	t.Run("an upload that stops", func(t *testing.T) {
		conn := announce(t, address, "POST /v1/upload", "Content-Length: 100",
			"Content-Type: multipart/form-data", auth)
		conn.Write([]byte("x"))
		if said := untilClosed(t, conn, time.Minute); !strings.HasPrefix(said, "HTTP/1.1 400 ") {
			t.Errorf("answered %q", said)
		}
	})
}

// TestAnswersOutliveTheirBodysDeadline: once a body is here its deadline must not end the request,
// and one that was lifted does not count.
func TestAnswersOutliveTheirBodysDeadline(t *testing.T) {
	t.Parallel()
	const limit = 150 * time.Millisecond
	address := patient(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/lifted" {
			listen.WithoutDeadline(r)
		}
		http.NewResponseController(w).EnableFullDuplex()
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-r.Context().Done():
			return // the client gets no answer
		case <-time.After(4 * limit):
			// longer than any deadline: what is tested is that none is left
		}
		io.WriteString(w, "done")
	}), limit)
	for path, pause := range map[string]time.Duration{"/at-once": 0, "/lifted": 3 * limit} {
		conn := announce(t, address, "POST "+path, "Content-Length: 1")
		reader := bufio.NewReader(conn)
		for range 2 { // the second on the same connection
			time.Sleep(pause) // the client is that slow
			conn.Write([]byte("x"))
			conn.SetReadDeadline(wait.Deadline())
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			var said bytes.Buffer
			said.ReadFrom(response.Body)
			if said.String() != "done" {
				t.Errorf("%s: answered %s %q", path, response.Status, said.String())
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", path)
		}
	}
}

// TestStreamsOutliveABodyThatNoneAskedFor: an operation without a body may get one, and the answer
// may take longer than it. One that does not come ends the answer, and then visibly.
func TestStreamsOutliveABodyThatNoneAskedFor(t *testing.T) {
	t.Parallel()
	const limit, ticks = 150 * time.Millisecond, 12
	server := contractServer(t)
	server.Echo().GET("/v1/watch", func(c echo.Context) error {
		return serve.StreamEvents(c.Request().Context(), c.Response(),
			func(ctx context.Context, stream *respond.EventStream) error {
				tick := time.NewTicker(limit / 3)
				defer tick.Stop()
				for i := range ticks {
					stream.Data([]byte(fmt.Sprint(i)))
					if stream.Flush() != nil {
						return nil
					}
					select {
					case <-tick.C:
					case <-ctx.Done():
						return nil
					}
				}
				return nil
			})
	}, server.OperationMiddlewares()["watchWidgets"]...)
	address := patient(t, server, limit)
	for name, c := range map[string]struct {
		header, body string
		comes        bool
	}{
		"with a length":          {"Content-Length: 2", "{}", true},
		"in chunks":              {"Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n", true},
		"one that does not come": {"Content-Length: 2", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := announce(t, address, "GET /v1/watch", keyHeader+": "+key, c.header)
			if _, err := io.WriteString(conn, c.body); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			data, err := io.ReadAll(response.Body)
			whole := strings.HasSuffix(string(data), fmt.Sprintf("data: %d\n\n", ticks-1))
			if whole != c.comes || (err == nil) != c.comes {
				t.Errorf("the stream ends with %q, %v", data, err)
			}
		})
	}
}

// TestRefusedExpectation: a client that asks before it sends a body gets the refusal at once, and
// with it that the connection ends, on which its body will not follow.
func TestRefusedExpectation(t *testing.T) {
	t.Parallel()
	server := contractServer(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(upstream.Close) // after the parallel subtests
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	server.Echo().POST("/proxied", func(c echo.Context) error {
		listen.WithoutDeadline(c.Request())
		if err := http.NewResponseController(c.Response()).EnableFullDuplex(); err != nil {
			return err
		}
		httputil.NewSingleHostReverseProxy(target).ServeHTTP(c.Response(), c.Request())
		return nil
	})
	address := patient(t, server, time.Minute)
	for path, want := range map[string]int{
		"/v1/upload": http.StatusUnauthorized, "/v1/widgets": http.StatusUnauthorized,
		"/nowhere": http.StatusNotFound, "/proxied": http.StatusForbidden,
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			conn := announce(t, address, "POST "+path, "Content-Length: 100", "Expect: 100-continue",
				"Content-Type: application/json")
			// Less than what is left of a body may take.
			conn.SetReadDeadline(time.Now().Add(3 * time.Second))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != want || !response.Close {
				t.Errorf("%s, Connection: close %t", response.Status, response.Close)
			}
		})
	}
}
