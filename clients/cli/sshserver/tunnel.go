package sshserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"sandbox.internal/internal/tunnel"
)

const (
	// daemonPort is that of execd, which serves tunnels to ports.
	daemonPort = 44772
	// maxProblem bounds the answer to a request for a tunnel that is refused, in bytes. The library
	// keeps as many.
	maxProblem = 1 << 10
	// closeTime bounds how long the rest of what a client wrote may take to reach the port, once the
	// client has closed its channel.
	closeTime = 10 * time.Second
	// dialTime bounds how long a connection to a port takes to be made.
	dialTime = time.Minute
)

const (
	// noRemote is the answer to a request to forward a port of the sandbox to this machine.
	noRemote = "forwarding a port of the sandbox to this machine (ssh -R): not supported"
	// noSockets is the answer to a request to forward to a unix socket.
	noSockets = "forwarding to a unix socket: not supported; ports of the sandbox are"
)

// destination is where a channel is to lead, as the client of SSH asks.
type destination struct {
	Host       string
	Port       uint32
	Origin     string
	OriginPort uint32
}

// inside reports whether a host is the sandbox: its loopback interface, or its own name.
func (s *server) inside(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	switch host {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	for _, name := range s.Names {
		if name != "" && strings.EqualFold(host, name) {
			return true
		}
	}
	return false
}

// tunnel serves a channel that leads to a port of the sandbox, until both directions have ended.
func (s *server) tunnel(asked ssh.NewChannel) {
	var to destination
	switch err := ssh.Unmarshal(asked.ExtraData(), &to); {
	case err != nil:
		_ = asked.Reject(ssh.ConnectionFailed, "the request is malformed")
		return
	case !s.inside(to.Host):
		s.refuse(asked, ssh.Prohibited, fmt.Sprintf("port forwarding to %q: only ports of the sandbox are forwarded to, as localhost, 127.0.0.1, ::1 or the sandbox's name",
			clipped(to.Host)))
		return
	case to.Port == 0 || to.Port > 65535:
		s.refuse(asked, ssh.ConnectionFailed, fmt.Sprintf("port forwarding: %d is no port", to.Port))
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	daemon, err := s.dialPort(ctx, int(to.Port))
	if err != nil {
		s.refuse(asked, ssh.ConnectionFailed, fmt.Sprintf("port %d of the sandbox: %v", to.Port, err))
		return
	}
	defer func() { _ = daemon.CloseNow() }()
	channel, requests, err := asked.Accept()
	if err != nil {
		return
	}
	defer func() { _ = channel.Close() }()
	closed, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(closed)
		ssh.DiscardRequests(requests)
		// The client has closed the channel. What it wrote before is still on its way.
		timer := time.NewTimer(closeTime)
		defer timer.Stop()
		select {
		case <-sent:
		case <-timer.C:
		case <-ctx.Done():
		}
		cancel()
	}()
	var copies sync.WaitGroup
	copies.Go(func() {
		defer close(sent)
		if tunnel.Send(ctx, daemon, channel) != nil {
			cancel()
			_ = channel.Close()
		}
	})
	if tunnel.Receive(ctx, channel, daemon) != nil {
		cancel()
		_ = channel.Close()
	}
	copies.Wait()
	_ = channel.Close()
	_ = daemon.Close(websocket.StatusNormalClosure, "")
	<-closed
}

// refuse refuses a channel. A client of SSH shows the reason to few people, so it is a warning too,
// once.
func (s *server) refuse(asked ssh.NewChannel, reason ssh.RejectionReason, message string) {
	_ = asked.Reject(reason, message)
	s.forwarding.Do(func() { s.Warn("%s", message) })
}

// clipped returns the beginning of a name that the client has sent.
func clipped(name string) string {
	const most = 100
	if len(name) > most {
		return name[:most] + "..."
	}
	return name
}

// dialPort makes a connection to a port of the sandbox.
func (s *server) dialPort(ctx context.Context, port int) (*websocket.Conn, error) {
	if s.HTTP == nil {
		return nil, errors.New("not supported")
	}
	limited, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, response, err := websocket.Dial(limited, fmt.Sprintf("%s/tunnel/%d", s.Sandbox.ProxyURL(daemonPort), port), &websocket.DialOptions{
		HTTPClient: s.HTTP, HTTPHeader: s.Header.Clone(), CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil:
		conn.SetReadLimit(-1)
		return conn, nil
	case response != nil && response.StatusCode == http.StatusNotFound: // a daemon from before there were tunnels
		return nil, errors.New("the sandbox's daemon forwards no connections: recreate the sandbox")
	case response == nil || response.StatusCode < http.StatusBadRequest || response.Body == nil:
		return nil, err
	}
	var problem struct{ Message string }
	data, _ := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	if json.Unmarshal(data, &problem) != nil || problem.Message == "" {
		return nil, fmt.Errorf("the service answered %d", response.StatusCode)
	}
	return nil, errors.New(clipped(problem.Message))
}
