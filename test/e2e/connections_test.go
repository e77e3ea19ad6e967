package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// TestConnectionsThatSendNoBody: 200 connections without a key that announce a body and send none
// are closed within 30 s, and the service answers others meanwhile.
func TestConnectionsThatSendNoBody(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{})
	host := strings.TrimPrefix(s.URL, "http://")
	began := time.Now()
	var open []net.Conn
	for range 200 {
		conn := dial(t, host)
		fmt.Fprint(conn,
			"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n")
		open = append(open, conn)
	}
	if got := s.Send(t, http.MethodGet, "/v1/sandboxes", ""); got.Status != http.StatusOK {
		t.Errorf("meanwhile the service answers %s", got)
	}
	for _, conn := range open {
		conn.SetReadDeadline(began.Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection is open after 30 s")
		}
	}
}

// TestMaxConnections: more connections wait until one ends, where all have shown a key.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	s := start(t, conformance.Plan{Server: "max_connections = 2"})
	host := strings.TrimPrefix(s.URL, "http://")
	// Whatever the service had to be asked for its start may hold connections; they are idle.
	s.HTTP.CloseIdleConnections()
	held := func() net.Conn {
		conn := dial(t, host)
		conn.SetReadDeadline(wait.Deadline())
		fmt.Fprintf(conn, "GET /v1/sandboxes?pageSize=1 HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", conformance.KeyHeader, conformance.AdminKey)
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	first := held()
	held()
	third := dial(t, host)
	fmt.Fprint(third, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	third.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := third.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a third connection is served: %d bytes, %v", n, err)
	}
	first.Close()
	third.SetReadDeadline(wait.Deadline())
	if _, err := third.Read(make([]byte, 1)); err != nil {
		t.Errorf("after another has ended the third connection is not served: %v", err)
	}
	third.Close() // so that the service can be asked again at the end
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
