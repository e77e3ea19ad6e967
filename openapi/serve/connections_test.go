package serve_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/test/wait"
)

// bounded serves the widgets with few connections without a key.
func bounded(t *testing.T, limit int) string {
	t.Helper()
	address, _ := serveBounded(t, listen.Options{MaxUnauthenticated: limit})
	return address
}

// serveBounded serves the widgets until stop is called, which returns when Serve has.
func serveBounded(t *testing.T, options listen.Options) (address string, stop func()) {
	t.Helper()
	options.Logger = zerolog.Nop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- listen.Serve(ctx, listener, contractServer(t), options)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// connection is one of a client.
type connection struct {
	net.Conn
	t      *testing.T
	answer *bufio.Reader
}

func dial(t *testing.T, address string) *connection {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(wait.Deadline())
	return &connection{conn, t, bufio.NewReader(conn)}
}

// exchange sends a request and returns the status of its answer.
func (c *connection) exchange(head ...string) int {
	c.t.Helper()
	fmt.Fprintf(c, "POST /v1/widgets HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n%s\r\n\r\n",
		strings.Join(head, "\r\n"))
	response, err := http.ReadResponse(c.answer, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// isCut waits until the connection is closed by the other side.
func (c *connection) isCut() {
	c.t.Helper()
	if _, err := c.answer.ReadByte(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("not closed: %v", err)
	}
}

// TestUnauthenticatedConnectionsAreBounded: connections without a key make room for new ones, and
// those with a key stay.
func TestUnauthenticatedConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 4
	address := bounded(t, limit)
	withKey := keyHeader + ": " + key
	var known, unknown []*connection
	for range 2 * limit {
		c := dial(t, address)
		c.exchange("X: x", withKey)
		known = append(known, c)
	}
	for range 3 * limit {
		c := dial(t, address)
		if got := c.exchange("X: x"); got != http.StatusUnauthorized {
			t.Fatalf("without a key: %d", got)
		}
		unknown = append(unknown, c)
	}
	for i, c := range unknown {
		if i < 2*limit {
			c.isCut()
		} else if got := c.exchange("X: x"); got != http.StatusUnauthorized {
			t.Errorf("one of the last: %d", got)
		}
	}
	for _, c := range known {
		if got := c.exchange("X: x"); got != http.StatusUnauthorized {
			t.Errorf("a connection that has had the key answers %d without it", got)
		}
	}
	// One that shows its key leaves its place.
	last := unknown[2*limit]
	last.exchange("X: x", withKey)
	dial(t, address).exchange("X: x")
	for _, c := range append(unknown[2*limit:], known...) {
		if got := c.exchange("X: x"); got != http.StatusUnauthorized {
			t.Errorf("after one has left its place: %d", got)
		}
	}
}

// TestUnauthenticatedHeadersAreBounded: what connections without a key have sent of their requests
// is bounded in all, whatever they have sent before.
func TestUnauthenticatedHeadersAreBounded(t *testing.T) {
	t.Parallel()
	const limit, large = 16, 50_000
	address := bounded(t, limit)
	honest := dial(t, address)
	for range 10 {
		if got := honest.exchange("X: " + strings.Repeat("x", large)); got != http.StatusUnauthorized {
			t.Fatalf("a large header without a key: %d", got)
		}
	}
	honest.exchange("X: x") // what came before counts until this is read
	// There is room for one of these.
	cut := make(chan error, 4)
	for range cap(cut) {
		c := dial(t, address)
		fmt.Fprintf(c, "GET /health HTTP/1.1\r\nX: %s", strings.Repeat("x", large))
		go func() {
			_, err := c.answer.ReadByte()
			cut <- err
		}()
	}
	for range cap(cut) - 1 {
		if err := wait.For(t, "the end of a connection", cut); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("one that has sent too much is not closed: %v", err)
		}
	}
	honest.exchange("X: x")
	if got := honest.exchange("X: "+strings.Repeat("x", large), keyHeader+": "+key); got == http.StatusUnauthorized {
		t.Errorf("with the key: %d", got)
	}
}

// TestConnectionsAreBounded: one more than there may be takes the place of one without a key. Where
// all have shown a key it waits until one of them ends, and no longer than the service runs.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	address, stop := serveBounded(t, listen.Options{MaxUnauthenticated: 2, MaxConnections: 2})
	withKey := keyHeader + ": " + key
	unknown, first := dial(t, address), dial(t, address)
	unknown.exchange("X: x")
	first.exchange("X: x", withKey)
	second := dial(t, address)
	second.exchange("X: x", withKey)
	unknown.isCut()
	third := dial(t, address)
	first.Close()
	third.exchange("X: x", withKey)
	fourth := dial(t, address) // waits
	stop()
	for _, c := range []*connection{second, third, fourth} {
		c.isCut()
	}
}
