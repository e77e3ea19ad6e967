package ingress_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandbox.internal/server/ingress"
	"sandbox.internal/test/wait"
)

// echo is a daemon behind which every port echoes WebSocket messages.
func echo(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil || conn.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

// dial opens a WebSocket to the port.
func (in *running) dial(ctx context.Context, t testing.TB) (*websocket.Conn, error) {
	t.Helper()
	r := in.request(t, http.MethodGet, box, 8000, "/ws", nil)
	conn, _, err := websocket.Dial(ctx, r.URL.String(), &websocket.DialOptions{HTTPHeader: r.Header, Host: r.Host})
	return conn, err
}

func bounce(ctx context.Context, conn *websocket.Conn, message string) error {
	if err := conn.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
		return err
	}
	_, back, err := conn.Read(ctx)
	if err == nil && string(back) != message {
		err = fmt.Errorf("%q came back as %q", message, back)
	}
	return err
}

// TestThousandWebSockets are open at the same time, and each gets its own messages back.
func TestThousandWebSockets(t *testing.T) {
	const count = 1000
	in := static(t, ingress.ModeWildcard, http.HandlerFunc(echo))
	ctx, cancel := context.WithTimeout(t.Context(), 2*wait.Patience())
	defer cancel()
	conns := make([]*websocket.Conn, count)
	each := func(do func(i int) error) {
		t.Helper()
		var workers sync.WaitGroup
		failures := make(chan error, count)
		for worker := range 20 {
			workers.Go(func() {
				for i := worker; i < count; i += 20 {
					if err := do(i); err != nil {
						failures <- fmt.Errorf("%d: %w", i, err)
					}
				}
			})
		}
		workers.Wait()
		close(failures)
		for err := range failures {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				conn.CloseNow()
			}
		}
	}()
	each(func(i int) (err error) {
		conns[i], err = in.dial(ctx, t)
		return err
	})
	for round := range 3 {
		each(func(i int) error { return bounce(ctx, conns[i], fmt.Sprintf("round %d of %d", round, i)) })
	}
	if metrics := in.admins(t, "/metrics").body; !strings.Contains(metrics, "\nsandbox_ingress_streams_open 1000\n") {
		t.Error("the metrics do not count 1000 open streams")
	}
}

func TestEventsComeAtOnce(t *testing.T) {
	more := make(chan struct{})
	for _, mode := range modes {
		in := static(t, mode, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-more:
				case <-r.Context().Done():
					return
				}
			}
		}))
		response, err := http.DefaultTransport.RoundTrip(in.request(t, http.MethodGet, box, 8000, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(response.Body)
		for i := range 3 {
			if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) || !lines.Scan() {
				t.Fatalf("%s: %q, %v", mode, lines.Text(), lines.Err())
			}
			more <- struct{}{}
		}
		response.Body.Close()
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// counting is an endless stream of bytes that a reader can check.
type counting struct{ n int64 }

func (c *counting) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(c.n * 31 >> 3)
		c.n++
	}
	return len(p), nil
}

func TestBigBodies(t *testing.T) {
	const size = 64 << 20
	daemon := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			// a client that is gone shows on its own side
			_, _ = io.Copy(w, io.LimitReader(&counting{}, size))
			return
		}
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		fmt.Fprintf(w, "%d %x %v", n, sum.Sum(nil), err)
	})
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(&counting{}, size)); err != nil {
		t.Fatal(err)
	}
	in := static(t, ingress.ModeURI, daemon)
	up := do(t, in.request(t, http.MethodPost, box, 8000, "/", io.LimitReader(&counting{}, size)))
	if want := fmt.Sprintf("%d %x <nil>", size, sum.Sum(nil)); up.body != want {
		t.Errorf("the sandbox got %s, want %s", up.body, want)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(in.request(t, http.MethodGet, box, 8000, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got := sha256.New()
	if _, err := io.Copy(got, response.Body); err != nil || string(got.Sum(nil)) != string(sum.Sum(nil)) {
		t.Errorf("another download than was sent: %v", err)
	}
}

// TestHTTP2 has requests at the same time on one connection without TLS.
func TestHTTP2(t *testing.T) {
	pair := make(chan struct{})
	for _, mode := range modes {
		in := static(t, mode, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case pair <- struct{}{}: // each needs another one that is under way
			case <-pair:
			}
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
		}))
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		var both sync.WaitGroup
		for i := range 2 {
			both.Go(func() {
				response, err := transport.RoundTrip(in.request(t, http.MethodPost, box, 8000, fmt.Sprintf("/%d", i), strings.NewReader("x")))
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if want := fmt.Sprintf("POST /proxy/8000/%d x", i); err != nil || response.ProtoMajor != 2 || string(body) != want {
					t.Errorf("%s: %s %s, %v", mode, response.Proto, body, err)
				}
			})
		}
		both.Wait()
		transport.CloseIdleConnections()
	}
}

func TestSandboxHasALimitOfConnections(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	file := routes(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}), "")
	in := start(t, ingress.ModeHeader, func(s *ingress.Settings) { s.Routes, s.SandboxConnections = file, 2 })
	var open sync.WaitGroup
	for range 2 {
		open.Go(func() { in.get(t, "/") })
		wait.For(t, "a request", arrived)
	}
	over := in.get(t, "/")
	over.wantProblem(t, http.StatusTooManyRequests, "TOO_MANY_CONNECTIONS", box, "2")
	if over.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", over.Header.Get("Retry-After"))
	}
	close(release)
	open.Wait()
	go func() { <-arrived }()
	if again := in.get(t, "/"); again.StatusCode != http.StatusOK {
		t.Errorf("%d %s", again.StatusCode, again.body)
	}
}

// TestSlowHeadersEnd: a connection that sends its header drop by drop, one with a header that is
// too long, and one that sends a refused body slowly are all ended by the ingress.
func TestSlowHeadersEnd(t *testing.T) {
	file := routes(t, http.HandlerFunc(showRequest), "")
	in := start(t, ingress.ModeURI, func(s *ingress.Settings) {
		s.Routes, s.HeaderTimeout, s.IdleTimeout, s.HeaderBytes = file, 200*time.Millisecond, 200*time.Millisecond, 4096
	})
	for what, sent := range map[string]string{
		"half a header":        "GET / HTTP/1.1\r\nHost: h\r\nX-",
		"nothing":              "",
		"an idle connection":   "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"a header too long":    "GET / HTTP/1.1\r\nHost: h\r\nX-Long: " + strings.Repeat("x", 16<<10),
		"half a refused body":  "POST /" + box + "/8000/ HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx",
		"HTTP/2 and then none": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		conn, err := net.Dial("tcp", in.app.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if err := conn.SetReadDeadline(wait.Deadline()); err != nil {
			t.Fatal(err)
		}
		var late net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &late) && late.Timeout() {
			t.Errorf("%s: the ingress waits", what)
		}
		conn.Close()
	}
}

// TestStopGivesStreamsAGrace: what is under way goes on, new requests are not taken, and the
// ingress ends when the last stream does.
func TestStopGivesStreamsAGrace(t *testing.T) {
	in := static(t, ingress.ModeWildcard, http.HandlerFunc(echo))
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	conn, err := in.dial(ctx, t)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if health := in.admins(t, "/healthz"); health.StatusCode != 200 || health.body != "{\"status\":\"healthy\"}\n" {
		t.Errorf("%d %s", health.StatusCode, health.body)
	}
	in.stop()
	wait.Until(t, "the end of the listener", func() bool {
		late, err := net.Dial("tcp", in.app.Addr())
		if err == nil {
			late.Close()
		}
		return err != nil
	})
	if health := in.admins(t, "/healthz"); health.StatusCode != 503 || !strings.Contains(health.body, "draining") {
		t.Errorf("%d %s", health.StatusCode, health.body)
	}
	for i := range 3 {
		if err := bounce(ctx, conn, fmt.Sprint(i)); err != nil {
			t.Fatalf("after the stop: %v", err)
		}
	}
	select {
	case err := <-in.stopped:
		t.Fatalf("the ingress ended before its last stream: %v", err)
	default:
	}
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	err = wait.For(t, "the end of the ingress", in.stopped)
	in.stopped <- err
}

// TestGraceEnds: a stream that does not end is cut off.
func TestGraceEnds(t *testing.T) {
	file := routes(t, http.HandlerFunc(echo), "")
	in := start(t, ingress.ModeURI, func(s *ingress.Settings) { s.Routes, s.Grace = file, 100*time.Millisecond })
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	conn, err := in.dial(ctx, t)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	in.stop()
	if _, message, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("got %q, %v; want the end of the connection", message, err)
	}
}
