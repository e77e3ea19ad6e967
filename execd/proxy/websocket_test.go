package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
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

// webSocketGUID is the constant of RFC 6455, section 1.3.
const webSocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + webSocketGUID))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// webSocket is a server that upgrades and then sends every message back. The channel
// closes when its connection has ended.
func webSocket(t *testing.T) (port int, ended <-chan struct{}) {
	t.Helper()
	done := make(chan struct{})
	port = upstream(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		conn, stream, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			r.Header.Get("Upgrade"), acceptKey(r.Header.Get("Sec-WebSocket-Key")))
		stream.Flush()
		for {
			payload, err := readFrame(stream.Reader)
			if err != nil {
				return
			}
			stream.Write(append([]byte{0x82, 126, byte(len(payload) >> 8), byte(len(payload))}, payload...))
			stream.Flush()
		}
	})
	return port, done
}

// readFrame reads one frame with a 16 bit length, masked or not.
func readFrame(r *bufio.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	var mask [4]byte
	if head[1]&0x80 != 0 {
		if _, err := io.ReadFull(r, mask[:]); err != nil {
			return nil, err
		}
	}
	payload := make([]byte, binary.BigEndian.Uint16(head[2:]))
	_, err := io.ReadFull(r, payload)
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return payload, err
}

// maskedFrame is a client's binary message with a 16 bit length.
func maskedFrame(payload []byte) []byte {
	mask := [4]byte{1, 2, 3, 4}
	frame := append([]byte{0x82, 0x80 | 126, byte(len(payload) >> 8), byte(len(payload))}, mask[:]...)
	for i, b := range payload {
		frame = append(frame, b^mask[i%4])
	}
	return frame
}

func TestWebSocketPasses(t *testing.T) {
	for _, via := range []string{"", "/proxy/44772"} {
		t.Run("via"+via, func(t *testing.T) {
			server := execd(t)
			port, ended := webSocket(t)
			const key = "dGhlIHNhbXBsZSBub25jZQ=="
			conn := raw(t, server, "GET "+via+to(port, "/ws")+" HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket\n"+
				"Sec-WebSocket-Version: 13\nSec-WebSocket-Key: "+key+"\n\n")
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Sec-WebSocket-Accept") != acceptKey(key) {
				t.Fatalf("%s %v", response.Status, response.Header)
			}
			if ids := response.Header["X-Request-Id"]; len(ids) != 1 {
				t.Errorf("X-Request-ID %q, want one", ids)
			}
			for i := range 3 {
				sent := []byte(fmt.Sprintf("message %d", i))
				if _, err := conn.Write(maskedFrame(sent)); err != nil {
					t.Fatal(err)
				}
				got, err := readFrame(reader)
				if err != nil || string(got) != string(sent) {
					t.Fatalf("message %q came back as %q, %v", sent, got, err)
				}
			}
			conn.Close()
			wait.For(t, "the end of the server's connection", ended)
		})
	}
}

// TestTokenStaysOutOfTheHandshake: an upgraded connection is set up in a way of its own.
func TestTokenStaysOutOfTheHandshake(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		r.Write(w)
	})
	conn := raw(t, server, "GET "+to(port, "/ws")+" HTTP/1.1\nHost: x\nConnection: Upgrade, close, "+tokenHeader+"\nUpgrade: websocket\n"+
		strings.ToLower(tokenHeader)+": secret\n"+tokenHeader+": secret\n\n")
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.Contains(answer, []byte("Upgrade: websocket")) {
		t.Errorf("the server saw %q, %v", answer, err)
	}
	if bytes.Contains(answer, []byte("secret")) {
		t.Errorf("the server saw the token: %q", answer)
	}
}

func TestServerClosesTheUpgradedConnection(t *testing.T) {
	server := execd(t)
	port := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: own\r\nConnection: Upgrade\r\n\r\nbye")
		conn.Close()
	})
	conn := raw(t, server, "GET "+to(port, "/")+" HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: own\n\n")
	reader := bufio.NewReader(conn)
	if _, err := http.ReadResponse(reader, nil); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(reader); err != nil || string(rest) != "bye" {
		t.Fatalf("%q, %v", rest, err)
	}
	conn.(*net.TCPConn).CloseWrite()
}

// TestUnaskedSwitchIsClosed: a server that switches to another protocol by itself keeps no
// connection of execd.
func TestUnaskedSwitchIsClosed(t *testing.T) {
	closed := make(chan error, 1)
	port := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		connection, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, err = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: mine\r\nConnection: Upgrade\r\n\r\n")
		}
		if err == nil {
			_, err = connection.Read(make([]byte, 1))
			connection.Close()
		}
		closed <- err
	})
	if response, body := get(t, execd(t), to(port, "/")); response.StatusCode != http.StatusBadGateway {
		t.Errorf("%s: %s", response.Status, body)
	}
	if err := wait.For(t, "the end of the connection to the server", closed); err != io.EOF {
		t.Error(err)
	}
}

// TestBrokenUpgradeDoesNotLookWhole: a connection that breaks on one side is reset on the other.
func TestBrokenUpgradeDoesNotLookWhole(t *testing.T) {
	for _, breaks := range []string{"server", "client"} {
		t.Run(breaks, func(t *testing.T) {
			server := execd(t)
			ends := make(chan error, 1)
			port := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
				taken, stream, err := http.NewResponseController(w).Hijack()
				if err != nil {
					ends <- err
					return
				}
				defer taken.Close()
				io.WriteString(taken, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: own\r\nConnection: Upgrade\r\n\r\nhalf")
				if _, err := io.ReadFull(stream, make([]byte, len("early, half"))); err != nil {
					ends <- err
					return
				}
				if breaks == "server" {
					taken.(*net.TCPConn).SetLinger(0)
					ends <- nil
					return
				}
				io.WriteString(taken, "x")
				_, err = io.ReadAll(stream)
				ends <- err
			})
			conn := raw(t, server, "GET "+to(port, "/")+" HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: own\n\nearly, ").(*net.TCPConn)
			reader := bufio.NewReader(conn)
			if _, err := http.ReadResponse(reader, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(reader, make([]byte, len("half"))); err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, "half")
			var err error
			if breaks == "server" {
				_, err = io.ReadAll(reader)
			} else {
				if _, err := reader.ReadByte(); err != nil { // the server has what came before
					t.Fatal(err)
				}
				conn.SetLinger(0)
				conn.Close()
			}
			ended := wait.For(t, "the end of the server's connection", ends)
			if breaks == "client" {
				err = ended
			} else if ended != nil {
				t.Error(ended)
			}
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the other side sees %v", err)
			}
		})
	}
}
