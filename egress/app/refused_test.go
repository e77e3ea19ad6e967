package app_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// TestTheAPIRefusesWhilePacketsAreNotMarked: its clients learn at once that no egress daemon runs,
// and so try again without a second's pause. The pause was the greater part of what a create with a
// sidecar cost.
func TestTheAPIRefusesWhilePacketsAreNotMarked(t *testing.T) {
	s := start(t, `{"defaultAction": "deny"}`)
	address := net.JoinHostPort(command(t, "docker", "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", s.name+"-s"), "18080")
	open, err := net.Dial("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()

	goOn := s.holdDaemonDead(t)
	// The first try of a connection that is dropped is repeated after a second; many tries in less
	// time than that cannot all be repeated ones.
	began := time.Now()
	for range 10 {
		conn, err := net.DialTimeout("tcp4", address, wait.Patience())
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("after %v a connection gives %v, want it refused", time.Since(began), err)
		}
	}
	if err := open.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	_, _ = open.Write([]byte("GET /healthz HTTP/1.1\r\n")) // on a connection that has ended it may fail already
	if n, err := io.ReadAll(open); len(n) > 0 || !errors.Is(err, syscall.ECONNRESET) && err != nil {
		t.Errorf("a connection from before gives %q, %v, want it ended", n, err)
	}
	if err := goOn(); err != nil {
		t.Fatal(err)
	}
	wait.Succeeds(t, "the egress daemon is back", func() error { return s.call(t, http.MethodGet, "/healthz", "", nil) })
}
