package jupyter_test

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"

	"sandbox.internal/test/reverse"
	"sandbox.internal/test/wait"
)

// cutter is a proxy whose connections from clients can be cut.
type cutter struct {
	url   string
	conns chan net.Conn
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	parsed, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{url: "http://" + listener.Addr().String(), conns: make(chan net.Conn, 100)}
	transport := &http.Transport{DisableKeepAlives: true}
	server := &http.Server{
		Handler: reverse.Handler(&httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(parsed) },
			Transport: transport,
		}),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateNew {
				c.conns <- conn
			}
		},
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until it is closed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		c.cut()
		wait.For(t, "the end of the server", served)
	})
	return c
}

// cut breaks every connection that there has been.
func (c *cutter) cut() {
	for {
		select {
		case conn := <-c.conns:
			_ = conn.Close()
		default:
			return
		}
	}
}
