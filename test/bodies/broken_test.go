package bodies_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandbox.internal/test/wait"
)

// breaking is a server that reads a part of each request and then breaks the connection off.
func breaking(t *testing.T) *backend {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetReadDeadline(wait.Deadline())
			_, _ = io.ReadFull(conn, make([]byte, 4096))
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	return &backend{listener: listener}
}

// endless is a body that has no end until it is closed.
type endless struct{ closed chan struct{} }

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-e.closed:
		return 0, io.ErrClosedPipe
	case <-time.After(time.Millisecond):
		return copy(p, strings.Repeat("x", 4096)), nil
	}
}

// TestServerThatBreaksOff: a client gets an error when the server breaks the connection off in the
// middle of the body, which has not come to its end.
func TestServerThatBreaksOff(t *testing.T) {
	for name, start := range routes {
		t.Run(name, func(t *testing.T) {
			r := start(t, breaking(t))
			body := &endless{make(chan struct{})}
			defer close(body.closed)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.address+r.path+"/case", body)
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range r.headers {
				request.Header.Set(name, value)
			}
			response, err := wait.Client().Do(request)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			defer response.Body.Close()
			if response.StatusCode < http.StatusInternalServerError {
				t.Errorf("the answer is %s", response.Status)
			}
		})
	}
}
