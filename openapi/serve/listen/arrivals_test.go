package listen_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/test/wait"
)

// TestArrivals: a request is pending from its first byte until it is answered, also before the
// connection is accepted; one that is disregarded is not, nor a connection that was taken over.
func TestArrivals(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/disregard":
			listen.Disregard(r.Context())
		case "/upgrade":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				break
			}
			defer conn.Close()
		}
		began <- struct{}{}
		<-release
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrivals := listen.NewArrivals()
	settles := func(pending bool) {
		t.Helper()
		wait.Until(t, fmt.Sprintf("pending is %t", pending), func() bool { return arrivals.Pending() == pending })
	}
	if arrivals.Pending() {
		t.Error("a service that was not started has something pending")
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- listen.Serve(ctx, listener, handler, listen.Options{Logger: zerolog.Nop(), Arrivals: arrivals})
	}()
	defer func() {
		stop()
		if err := wait.For(t, "the end of the service", served); err != nil {
			t.Error(err)
		}
	}()

	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(text string) {
		t.Helper()
		if _, err := conn.Write([]byte(strings.ReplaceAll(text, "\n", "\r\n"))); err != nil {
			t.Fatal(err)
		}
	}
	settles(false) // accepted
	for range 2 {
		send("GET / HT")
		settles(true)
		send("TP/1.1\nHost: x\n\n")
		wait.For(t, "a request", began)
		if !arrivals.Pending() {
			t.Error("the request is not pending while its handler runs")
		}
		release <- struct{}{}
		settles(false)
		send("GET /disregard HTTP/1.1\nHost: x\n\n")
		wait.For(t, "a request that is disregarded", began)
		if arrivals.Pending() {
			t.Error("the request that was disregarded is pending")
		}
		release <- struct{}{}
		settles(false)
	}
	send("GET /upgrade HTTP/1.1\nHost: x\n\n")
	wait.For(t, "a request that is upgraded", began)
	send("something in another protocol")
	if arrivals.Pending() {
		t.Error("the connection that was taken over counts")
	}
	release <- struct{}{}
	settles(false)
}

// TestArrivalBeforeAccept: a connection that waits to be accepted is pending.
func TestArrivalBeforeAccept(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrivals := listen.NewArrivals()
	held := &heldListener{TCPListener: listener.(*net.TCPListener), release: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- listen.Serve(ctx, held, http.NotFoundHandler(), listen.Options{Logger: zerolog.Nop(), Arrivals: arrivals})
	}()
	defer func() {
		stop()
		if err := wait.For(t, "the end of the service", served); err != nil {
			t.Error(err)
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wait.Until(t, "the connection is pending", arrivals.Pending)
	close(held.release)
	wait.Until(t, "the connection is accepted", func() bool { return !arrivals.Pending() })
}

// heldListener accepts nothing until release is closed.
type heldListener struct {
	*net.TCPListener
	release chan struct{}
}

func (l *heldListener) Accept() (net.Conn, error) {
	<-l.release
	return l.TCPListener.Accept()
}
