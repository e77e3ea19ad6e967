package sshserver_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"sandbox.internal/test/wait"
)

// tunnels is a daemon with a tunnel to port 8000, which serve is the other end of.
func tunnels(t *testing.T, serve func(*http.Request, *websocket.Conn)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tunnel/8000", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("SERVICE-API-KEY") != "key" {
			t.Error("the tunnel has no key")
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.CloseNow() }()
		serve(r, conn)
	})
	mux.HandleFunc("GET /tunnel/{port}", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		answer(w, map[string]string{"code": "PORT_NOT_LISTENING", "message": "nothing listens on the port" + strings.Repeat("!", 300)})
	})
	return mux
}

// TestForwarding: a channel leads to a port of the sandbox, and each direction ends by itself.
func TestForwarding(t *testing.T) {
	t.Parallel()
	c := connect(t, tunnels(t, func(r *http.Request, conn *websocket.Conn) {
		var all []byte
		for {
			_, data, err := conn.Read(r.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if all = append(all, data...); len(data) == 0 {
				break
			}
		}
		slices.Reverse(all)
		_ = conn.Write(r.Context(), websocket.MessageBinary, all)
		_ = conn.Write(r.Context(), websocket.MessageBinary, nil)
		_, _, _ = conn.Read(r.Context()) // until it is closed
	}))
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "box", "BOX.sandbox", "LocalHost."} {
		channel := open(t, c, host, 8000)
		if _, err := io.WriteString(channel, "abc"); err != nil {
			t.Fatal(err)
		}
		if err := channel.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(channel); err != nil || string(data) != "cba" {
			t.Errorf("%s: %q, %v", host, data, err)
		}
	}
}

// open opens a channel to a port, as ssh -L does.
func open(t *testing.T, c *connection, host string, port uint32) ssh.Channel {
	t.Helper()
	channel, err := tryOpen(c, host, port)
	if err != nil {
		t.Fatalf("%s: %v", host, err)
	}
	return channel
}

func tryOpen(c *connection, host string, port uint32) (ssh.Channel, error) {
	channel, requests, err := c.OpenChannel("direct-tcpip", ssh.Marshal(struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}{host, port, "127.0.0.1", 1}))
	if err == nil {
		go ssh.DiscardRequests(requests)
	}
	return channel, err
}

// TestForwardingRefused: what is not inside of the sandbox is refused with the reason.
func TestForwardingRefused(t *testing.T) {
	t.Parallel()
	c := connect(t, tunnels(t, func(*http.Request, *websocket.Conn) { t.Error("a tunnel is open") }))
	for _, test := range []struct {
		host   string
		port   uint32
		reason ssh.RejectionReason
		says   string
	}{
		{"example.com", 80, ssh.Prohibited, `port forwarding to "example.com": only ports of the sandbox`},
		{"169.254.169.254", 80, ssh.Prohibited, "only ports of the sandbox"},
		{"0.0.0.0", 80, ssh.Prohibited, "only ports of the sandbox"},
		{"127.0.0.2", 80, ssh.Prohibited, "only ports of the sandbox"},
		{"", 80, ssh.Prohibited, "only ports of the sandbox"},
		{"other.sandbox", 80, ssh.Prohibited, "only ports of the sandbox"},
		{strings.Repeat("x", 10_000), 80, ssh.Prohibited, "xxx..."},
		{"localhost", 0, ssh.ConnectionFailed, "0 is no port"},
		{"localhost", 65536, ssh.ConnectionFailed, "65536 is no port"},
		{"localhost", 9, ssh.ConnectionFailed, "port 9 of the sandbox: nothing listens on the port!!!"},
	} {
		_, err := tryOpen(c, test.host, test.port)
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != test.reason || !strings.Contains(refused.Message, test.says) || len(refused.Message) > 300 {
			t.Errorf("%.20s:%d is refused with: %v", test.host, test.port, err)
		}
	}
	if _, _, err := c.OpenChannel("direct-tcpip", []byte("x")); err == nil {
		t.Error("a malformed request is accepted")
	}
	if _, _, err := c.OpenChannel("direct-streamlocal@openssh.com", nil); err == nil || !strings.Contains(err.Error(), "unix socket") {
		t.Errorf("a unix socket is refused with: %v", err)
	}
	for range 2 {
		if _, err := c.Listen("tcp", "localhost:0"); err == nil {
			t.Error("a port of the sandbox is forwarded")
		}
	}
	wait.Until(t, "both warnings are there, once", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.warnings) == 2 && strings.Contains(strings.Join(c.warnings, " "), "ssh -R")
	})
}

// TestForwardingOfHostiles: a daemon that breaks off, or sends what is none of it, ends the channel
// and nothing else.
func TestForwardingOfHostiles(t *testing.T) {
	t.Parallel()
	for name, hostile := range map[string]func(*http.Request, *websocket.Conn){
		"broken off": func(_ *http.Request, conn *websocket.Conn) { _ = conn.CloseNow() },
		"text": func(r *http.Request, conn *websocket.Conn) {
			_ = conn.Write(r.Context(), websocket.MessageText, []byte("{}"))
			_, _, _ = conn.Read(r.Context())
		},
	} {
		c := connect(t, tunnels(t, hostile))
		channel := open(t, c, "localhost", 8000)
		if _, err := io.Copy(io.Discard, channel); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// The channel is closed as a whole.
		wait.Until(t, "writes to the channel fail after: "+name, func() bool {
			_, err := io.WriteString(channel, "x")
			return err != nil
		})
	}
}

// TestForwardingIsBounded: a connection has a bounded number of channels.
func TestForwardingIsBounded(t *testing.T) {
	t.Parallel()
	c := connect(t, tunnels(t, func(r *http.Request, conn *websocket.Conn) { _, _, _ = conn.Read(r.Context()) }))
	var channels []ssh.Channel
	for {
		channel, err := tryOpen(c, "localhost", 8000)
		if err != nil {
			var refused *ssh.OpenChannelError
			if !errors.As(err, &refused) || refused.Reason != ssh.ResourceShortage {
				t.Errorf("channel %d is refused with: %v", len(channels)+1, err)
			}
			break
		}
		if channels = append(channels, channel); len(channels) > 1000 {
			t.Fatal("there is no bound")
		}
	}
	for _, channel := range channels {
		_ = channel.Close()
	}
	wait.Until(t, "there is room after channels were closed", func() bool {
		channel, err := tryOpen(c, "localhost", 8000)
		return err == nil && channel.Close() == nil
	})
}
