package bodies_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sandbox.internal/test/wait"
)

// backend is the server at the end of the way: it does to each request what the request's headers
// say, and nothing that net/http's server would do for it.
type backend struct {
	listener net.Listener
	conns    sync.WaitGroup
	strange  atomic.Int64 // requests that no client sent as such
}

func startBackend(t *testing.T) *backend {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{listener: listener}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.conns.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(wait.Deadline())
				b.serve(conn)
			})
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		wait.For(t, "the end of the listener", accepted)
		b.conns.Wait()
	})
	return b
}

func (b *backend) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// serve answers one request, and looks at whether its body is followed by another one.
func (b *backend) serve(conn net.Conn) {
	reader := bufio.NewReader(conn)
	r, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/case") {
		b.strange.Add(1)
		return
	}
	read := int64(-1) // all
	if part := r.Header.Get("X-Read"); part != "all" {
		read, _ = strconv.ParseInt(part, 10, 64)
	}
	body := "case " + r.Header.Get("X-Case")
	header := fmt.Sprintf("HTTP/1.1 %s Answered\r\nX-Case: %s\r\nContent-Length: %d\r\n\r\n", r.Header.Get("X-Status"), r.Header.Get("X-Case"), len(body))
	chunked := r.Header.Get("X-Framing") == "chunked"
	if chunked {
		header = strings.Replace(header, fmt.Sprintf("Content-Length: %d", len(body)), "Transfer-Encoding: chunked", 1)
		body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	}
	switch r.Header.Get("X-Answer") {
	case "before":
		_, _ = io.WriteString(conn, header+body)
		if r.Header.Get("Expect") != "" {
			return // the body may follow or not
		}
		_ = b.take(conn, r, read)
	case "during":
		if b.take(conn, r, min(max(read, -read), 1)) != nil {
			return
		}
		_, _ = io.WriteString(conn, header)
		_ = b.take(conn, r, read)
		_, _ = io.WriteString(conn, body)
	case "after":
		if b.take(conn, r, read) != nil {
			return // the body broke off: so does the exchange
		}
		_, _ = io.WriteString(conn, header+body)
	}
	if read < 0 {
		if _, err := http.ReadRequest(reader); err == nil {
			b.strange.Add(1)
		}
	}
	// A close with unread data resets the connection, as that of any simple server does.
}

// take reads a part of the body, or all of it with -1. It sends the client of an Expect on first.
func (b *backend) take(conn net.Conn, r *http.Request, n int64) error {
	if n != 0 && r.Header.Get("Expect") != "" {
		_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		r.Header.Del("Expect")
	}
	if n < 0 {
		_, err := io.Copy(sha256.New(), r.Body)
		return err
	}
	_, _ = io.CopyN(io.Discard, r.Body, n)
	return nil
}
