package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"sandbox.internal/test/wait"
)

// own starts a server that switches to a protocol of its own, and a forwarder in front
// of it. speak has the connection then; its end closes the channel.
func own(t *testing.T, speak func(conn *net.TCPConn, r *bufio.Reader)) (start func(early string) (*net.TCPConn, *bufio.Reader), ended <-chan struct{}) {
	t.Helper()
	done := make(chan struct{})
	server := forwarder(t, to(upstream(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		conn, stream, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n", r.Header.Get("Upgrade"))
		stream.Flush()
		speak(conn.(*net.TCPConn), stream.Reader)
	})))
	return func(early string) (*net.TCPConn, *bufio.Reader) {
		conn := raw(t, server, "GET "+prefix+"/ HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: own\n\n"+early)
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusSwitchingProtocols || len(response.Header["X-Request-Id"]) != 1 {
			t.Fatalf("%s %v", response.Status, response.Header)
		}
		return conn, reader
	}, done
}

func TestUpgradeCarriesBytesBothWays(t *testing.T) {
	start, ended := own(t, func(conn *net.TCPConn, r *bufio.Reader) { io.Copy(conn, r) })
	conn, reader := start("early ")
	for i := range 3 {
		fmt.Fprintf(conn, "line %d\n", i)
		want := fmt.Sprintf("line %d\n", i)
		if i == 0 {
			want = "early " + want
		}
		if line, err := reader.ReadString('\n'); err != nil || line != want {
			t.Fatalf("got %q, %v, want %q", line, err, want)
		}
	}
	conn.Close()
	wait.For(t, "the end of the server's connection", ended)
}

func TestUpgradeEndsWithTheServer(t *testing.T) {
	start, _ := own(t, func(conn *net.TCPConn, _ *bufio.Reader) { io.WriteString(conn, "bye") })
	conn, reader := start("")
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "bye" {
		t.Fatalf("%q, %v", rest, err)
	}
	conn.CloseWrite()
}

func TestUpgradeHalfClosedByTheClient(t *testing.T) {
	for name, early := range map[string]string{"": "", "with early bytes": "all "} {
		t.Run(name, func(t *testing.T) {
			// The server answers only once it has seen the end of what the client says.
			start, _ := own(t, func(conn *net.TCPConn, r *bufio.Reader) {
				said, err := io.ReadAll(r)
				fmt.Fprintf(conn, "%s %v", said, err)
			})
			conn, reader := start(early)
			io.WriteString(conn, "said")
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(reader); err != nil || string(rest) != early+"said <nil>" {
				t.Fatalf("%q, %v", rest, err)
			}
		})
	}
}

func TestUpgradeHalfClosedByTheServer(t *testing.T) {
	said := make(chan string, 1)
	start, _ := own(t, func(conn *net.TCPConn, r *bufio.Reader) {
		conn.CloseWrite()
		rest, _ := io.ReadAll(r)
		said <- string(rest)
	})
	conn, reader := start("")
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 0 {
		t.Fatalf("%q, %v", rest, err)
	}
	io.WriteString(conn, "still here")
	conn.Close()
	if got := wait.For(t, "the server's end", said); got != "still here" {
		t.Errorf("the server got %q", got)
	}
}

func TestUpgradeThatTheServerDeclines(t *testing.T) {
	server := forwarder(t, to(upstream(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUpgradeRequired) })))
	conn := raw(t, server, "GET "+prefix+"/ HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: own\n\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 426 ") {
		t.Fatalf("%q, %v", line, err)
	}
}

// TestUpgradeBrokenByTheServer and its mirror image: data that breaks off does not look whole.
func TestUpgradeBrokenByTheServer(t *testing.T) {
	start, _ := own(t, func(conn *net.TCPConn, r *bufio.Reader) {
		io.WriteString(conn, "half of the data")
		_, _ = r.ReadByte() // until the client has it
		conn.SetLinger(0)
	})
	conn, reader := start("")
	if _, err := io.ReadFull(reader, make([]byte, len("half of the data"))); err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "x")
	if rest, err := io.ReadAll(reader); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the data ends with %q, %v", rest, err)
	}
}

func TestUpgradeBrokenByTheClient(t *testing.T) {
	ends := make(chan error, 1)
	start, _ := own(t, func(conn *net.TCPConn, r *bufio.Reader) {
		_, err := io.ReadFull(r, make([]byte, len("half an upload")))
		io.WriteString(conn, "x")
		if err == nil {
			_, err = io.ReadAll(r)
		}
		ends <- err
	})
	conn, reader := start("half an ")
	io.WriteString(conn, "upload")
	if _, err := reader.ReadByte(); err != nil { // the server has it
		t.Fatal(err)
	}
	conn.SetLinger(0)
	conn.Close()
	if err := wait.For(t, "the end of the upload", ends); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the upload ends with %v", err)
	}
}
