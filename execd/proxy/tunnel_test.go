package proxy_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"sandbox.internal/execd/proxy"
	"sandbox.internal/test/wait"
)

// tunnel connects through a tunnel to a port.
func tunnel(t *testing.T, segment string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	p := proxy.New(proxy.Options{Logger: zerolog.Nop(), ErrorBody: func(w http.ResponseWriter, _ *http.Request, status int, code, message string) {
		http.Error(w, code+" "+message, status)
	}})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.Tunnel(w, r, segment) }))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	conn, response, err := websocket.Dial(ctx, server.URL, nil)
	if err == nil {
		conn.SetReadLimit(-1)
		t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, response, err
}

// listenRaw serves connections to a port of the loopback interface.
func listenRaw(t *testing.T, serve func(*net.TCPConn)) (segment string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if err := conn.SetDeadline(wait.Deadline()); err != nil {
			t.Error(err)
		}
		serve(conn.(*net.TCPConn))
	}()
	t.Cleanup(func() {
		listener.Close()
		wait.For(t, "the end of the server", ended)
	})
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	rand.Read(data) // crypto/rand.Read never returns an error
	return data
}

// readAll returns what comes until the direction ends.
func readAll(t *testing.T, conn *websocket.Conn) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	var all []byte
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil || kind != websocket.MessageBinary {
			t.Fatalf("after %d bytes: %v %v", len(all), kind, err)
		}
		if len(data) == 0 {
			return all
		}
		all = append(all, data...)
	}
}

// send sends bytes in pieces, and the end of the direction.
func send(ctx context.Context, conn *websocket.Conn, data []byte) error {
	for piece := 100_000; len(data) > 0; data = data[min(piece, len(data)):] {
		if err := conn.Write(ctx, websocket.MessageBinary, data[:min(piece, len(data))]); err != nil {
			return err
		}
	}
	return conn.Write(ctx, websocket.MessageBinary, nil)
}

// TestTunnel: the bytes are the same in both directions, each of which ends by itself.
func TestTunnel(t *testing.T) {
	t.Parallel()
	up, down := randomBytes(3<<20+1), randomBytes(2<<20+3)
	got := make(chan []byte, 1)
	segment := listenRaw(t, func(conn *net.TCPConn) {
		// The answer comes after the whole request.
		data, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		got <- data
		if _, err := conn.Write(down); err != nil {
			t.Error(err)
		}
	})
	conn, _, err := tunnel(t, segment)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- send(t.Context(), conn, up) }()
	if data := wait.For(t, "the request", got); !bytes.Equal(data, up) {
		t.Errorf("%d bytes reach the server of %d, or other ones", len(data), len(up))
	}
	if err := wait.For(t, "the end of the writes", sent); err != nil {
		t.Error(err)
	}
	if data := readAll(t, conn); !bytes.Equal(data, down) {
		t.Errorf("%d bytes come back of %d, or other ones", len(data), len(down))
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("after both ends: %v", err)
	}
}

// TestTunnelOfAServerThatEndsFirst: the client may still write then.
func TestTunnelOfAServerThatEndsFirst(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	conn, _, err := tunnel(t, listenRaw(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "hello")
		if err := conn.CloseWrite(); err != nil {
			t.Error(err)
		}
		data, _ := io.ReadAll(conn)
		got <- data
	}))
	if err != nil {
		t.Fatal(err)
	}
	if text := readAll(t, conn); string(text) != "hello" {
		t.Errorf("it says %q", text)
	}
	if err := send(t.Context(), conn, []byte("late")); err != nil {
		t.Error(err)
	}
	if data := wait.For(t, "what the client writes", got); string(data) != "late" {
		t.Errorf("the server gets %q", data)
	}
}

// TestTunnelEnds: a client that leaves ends the connection to the server, and so does a message
// that is none.
func TestTunnelEnds(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*websocket.Conn) error{
		"close": func(conn *websocket.Conn) error { return conn.CloseNow() },
		"text": func(conn *websocket.Conn) error {
			return conn.Write(context.Background(), websocket.MessageText, []byte("x"))
		},
	} {
		ended := make(chan struct{})
		conn, _, err := tunnel(t, listenRaw(t, func(conn *net.TCPConn) {
			_, _ = io.Copy(io.Discard, conn)
			close(ended)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if err := leave(conn); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wait.For(t, "the end of the connection after "+name, ended)
	}
}

// TestTunnelRefusals: what leads to no port is refused before the handshake.
func TestTunnelRefusals(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := strconv.Itoa(closed.Addr().(*net.TCPAddr).Port)
	closed.Close()
	for segment, want := range map[string]string{free: "502 PORT_NOT_LISTENING", "0": "400 INVALID_PORT", "x": "400 INVALID_PORT", "70000": "400 INVALID_PORT"} {
		_, response, err := tunnel(t, segment)
		if err == nil || response == nil {
			t.Fatalf("%s: %v", segment, err)
		}
		text, _ := io.ReadAll(response.Body)
		if got := strconv.Itoa(response.StatusCode) + " " + string(text); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", segment, got, want)
		}
	}
}
