// Package sshserver serves SSH on one connection, with the commands, the terminals and the files
// (SFTP) of a sandbox.
//
// The connection is a pipe between a client of SSH on this machine and this program, so the server
// authenticates no client, and has a new host key each time. The sandbox behind it is reached with
// the API key of this program's caller.
//
// Everything that the sandbox answers is hostile. The memory for it is bounded for each channel and
// each open file. It is written to this machine only where a client opens a file to change a part
// of it: that file is in a temporary one, and bounded.
package sshserver

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	sandbox "sandbox.internal/clients/go"
)

// Options say what a connection reaches.
type Options struct {
	Sandbox *sandbox.Sandbox
	// UID and GID are who runs commands and terminals; nil means the daemon's own user.
	UID, GID *int64
	// Warn gets what cannot be reported to the client of SSH.
	Warn func(format string, args ...any)
	// Names are those of the sandbox, as hosts to forward ports to.
	Names []string
	// HTTP makes connections to ports, and Header has the key of the service; without HTTP no port
	// is forwarded.
	HTTP   *http.Client
	Header http.Header
}

const (
	// version is what the server calls itself.
	version = "SSH-2.0-sandbox"
	// maxChannels bounds what one connection may have open at a time.
	maxChannels = 256
)

// Serve serves one connection until the client closes it or ctx ends. It returns nil when the
// client has closed the connection.
func Serve(ctx context.Context, conn net.Conn, options Options) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{NoClientAuth: true, ServerVersion: version}
	config.AddHostKey(signer)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	served, channels, requests, err := ssh.NewServerConn(conn, config)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	s := &server{Options: options, open: make(chan struct{}, maxChannels)}
	go s.refuseRequests(requests)
	// What has a channel open ends with the connection.
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(ctx)
	for channel := range channels {
		s.accept(channel)
	}
	cancel()
	s.channels.Wait()
	err = served.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case closedByClient(err):
		return nil
	}
	return err
}

// closedByClient reports whether a connection has ended as connections of SSH do.
func closedByClient(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return true
	}
	const byApplication = "ssh: disconnect, reason 11:" // the package has no type for it
	return err != nil && strings.HasPrefix(err.Error(), byApplication)
}

// server serves the channels of one connection.
type server struct {
	Options
	ctx      context.Context // of the connection
	channels sync.WaitGroup
	open     chan struct{} // has an element for each channel that is open

	forwarding sync.Once // was refused
	remote     sync.Once // forwarding to the client was refused
}

// refuseRequests refuses what a client asks of the whole connection, such as to forward ports of
// the sandbox to it.
func (s *server) refuseRequests(requests <-chan *ssh.Request) {
	for request := range requests {
		if strings.HasSuffix(request.Type, "forward") || strings.HasSuffix(request.Type, "forward@openssh.com") {
			s.remote.Do(func() { s.Warn("%s", noRemote) }) // the protocol has no words for it
		}
		_ = request.Reply(false, nil)
	}
}

func (s *server) accept(asked ssh.NewChannel) {
	serve := s.session
	switch asked.ChannelType() {
	case "session":
	case "direct-tcpip":
		serve = s.tunnel
	case "direct-streamlocal@openssh.com":
		s.refuse(asked, ssh.Prohibited, noSockets)
		return
	default:
		_ = asked.Reject(ssh.UnknownChannelType, "a sandbox has sessions and connections to its ports only")
		return
	}
	select {
	case s.open <- struct{}{}:
	default:
		_ = asked.Reject(ssh.ResourceShortage, "too many channels are open")
		return
	}
	s.channels.Go(func() {
		defer func() { <-s.open }()
		serve(asked)
	})
}
