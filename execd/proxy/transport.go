package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"sandbox.internal/internal/forward"
)

// dialTimeout bounds the connection to a server that listens but does not accept. On a busy machine
// a daemon may not run for some seconds.
const dialTimeout = 10 * time.Second

var errNotListening = errors.New("no process listens on the port")

// loopback is the address of a port as servers in the sandbox see it.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// newTransport speaks HTTP/1.1 to the sandbox's loopback interface, whatever proxy
// the environment names.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext: dial,
		// A client that asks before it sends a large body (Expect: 100-continue) gets the
		// server's answer, or goes ahead when the server has none.
		ExpectContinueTimeout: time.Second,
		// A connection costs little here, and one that is kept would fail the next
		// upload when the server has been restarted meanwhile, as in development it
		// often is.
		DisableKeepAlives: true,
		// Else the transport asks for gzip on its own and unpacks it.
		DisableCompression: true,
	}
}

// dial connects to an IPv4 loopback address, or to the same port on IPv6 when nothing
// listens there: some servers bind only what "localhost" means to them. The error is
// errNotListening when neither is open.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialRaw(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return forward.NewConn(conn), nil
}

// dialRaw is dial, without what HTTP needs.
func dialRaw(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, err
	}
	_, port, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, splitErr
	}
	// The second error does not matter: without IPv6 it says only that there is none.
	conn, err6 := dialer.DialContext(ctx, network, net.JoinHostPort("::1", port))
	if err6 != nil {
		return nil, fmt.Errorf("%w: %w", errNotListening, err)
	}
	return conn, nil
}
