// Package dnsproxy answers the sandbox's DNS queries: those for allowed names with what the real
// name servers say, all others at once with NXDOMAIN. The addresses of an answer may be reached
// before the answer leaves.
package dnsproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/egress/policy"
)

const (
	// atOnce bounds the queries that wait for name servers, each of which holds a socket and some
	// KiB. More are answered with SERVFAIL.
	atOnce = 512
	// patience is how long a query is worked at; clients give up after five seconds and ask again.
	patience = 5 * time.Second
	// maxQuery is the largest query, in bytes. A connection that announces a longer one is closed.
	maxQuery = 2048
	// readers is how many goroutines read UDP queries. They also answer those that need no name
	// server.
	readers = 2
	// receiveBuffer holds bursts of queries, in bytes.
	receiveBuffer = 4 << 20

	// maxConnections bounds the clients' TCP connections; more are closed at once. maxPerConnection
	// bounds the queries of one.
	maxConnections   = 128
	maxPerConnection = 128
	// tcpIdle is how long a connection may take until a query has arrived whole, and tcpSend until
	// an answer is taken.
	tcpIdle = 10 * time.Second
	tcpSend = 2 * time.Second
	// tcpReceiveBuffer and tcpSendBuffer are what the kernel holds for one connection, in bytes. It
	// doubles them.
	tcpReceiveBuffer = 8 << 10
	tcpSendBuffer    = 16 << 10

	// longAtOnce bounds the answers of name servers over TCP, which may have 64 KiB, and
	// unpackedAtOnce the answers of any kind that are taken apart: in that form they take many
	// times their length.
	longAtOnce     = 16
	unpackedAtOnce = 2

	// binds is how often a port is looked for that is free for UDP and TCP.
	binds = 16
	// maxFailures is how often in a row reading or accepting may fail, with failurePause in
	// between.
	maxFailures  = 100
	failurePause = 10 * time.Millisecond
)

// Decider decides what may be asked and reached. Many goroutines call the methods concurrently.
type Decider interface {
	// Name decides a name in its normal form. With dryRun a denied name is answered all the same.
	Name(name string) (decision policy.Decision, dryRun bool)
	// Resolved decides an address that an allowed name resolved to.
	Resolved(addr netip.Addr) policy.Decision
	// Learn makes the addresses of an answer reachable, for as long as the answer holds, and
	// returns when they are. An error means that they are not. The aliases led from the name to
	// them; a rule that denies one of them denies the answer.
	Learn(ctx context.Context, name string, aliases []string, addresses []netip.Addr, ttl time.Duration) error
	// Decided is called when a query has ended. An address decides when the name is allowed and
	// none of its addresses is.
	Decided(name string, decision policy.Decision, dryRun, resolved bool)
}

// Options configures a [Proxy].
type Options struct {
	Decider Decider
	// Upstream are the name servers to ask, in this order.
	Upstream []netip.AddrPort
	// Mark is the mark of the proxy's own packets, which the firewall accepts; 0 sets none.
	Mark   uint32
	Logger zerolog.Logger
}

// Proxy listens on the loopback. The memory, sockets and goroutines that it uses are bounded, for
// every input of clients and name servers.
type Proxy struct {
	options     Options
	udp         *net.UDPConn
	tcp         *net.TCPListener
	slots       chan struct{} // of queries that wait for name servers
	connections chan struct{}
	long        chan struct{}
	unpacked    chan struct{}
	working     sync.WaitGroup
}

// Listen opens a port on the loopback, the same for UDP and TCP, and serves nothing yet.
func Listen(ctx context.Context) (*net.UDPConn, *net.TCPListener, error) {
	config := net.ListenConfig{Control: func(network, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			// These are about bursts and memory alone: what the kernel gives instead works, too.
			if network == "udp4" {
				_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, receiveBufferForce,
					receiveBuffer)
				return
			}
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF,
				tcpReceiveBuffer)
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, tcpSendBuffer)
		})
	}}
	var failure error
	for range binds {
		udp, err := config.ListenPacket(ctx, "udp4", "127.0.0.1:0")
		if err != nil {
			return nil, nil, fmt.Errorf("listen for DNS: %w", err)
		}
		tcp, err := config.Listen(ctx, "tcp4", udp.LocalAddr().String())
		if err == nil {
			return udp.(*net.UDPConn), tcp.(*net.TCPListener), nil
		}
		failure = errors.Join(err, udp.Close())
	}
	return nil, nil, fmt.Errorf("listen for DNS: %w", failure)
}

// New returns a proxy on the listeners of [Listen], which it owns from now on.
func New(udp *net.UDPConn, tcp *net.TCPListener, options Options) *Proxy {
	return &Proxy{
		options: options, udp: udp, tcp: tcp,
		slots:       make(chan struct{}, atOnce),
		connections: make(chan struct{}, maxConnections),
		long:        make(chan struct{}, longAtOnce),
		unpacked:    make(chan struct{}, unpackedAtOnce),
	}
}

// Run serves until ctx ends, or returns why it cannot.
func (p *Proxy) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() {
		_ = p.udp.Close()
		_ = p.tcp.Close()
	})
	failed := make(chan error, readers+1)
	serve := func(one func(context.Context) error) {
		p.working.Go(func() {
			defer cancel() // one that has ended ends the others
			if err := untilItFails(ctx, one); err != nil {
				failed <- err
			}
		})
	}
	for range readers {
		buffer := make([]byte, maxQuery)
		serve(func(ctx context.Context) error { return p.datagram(ctx, buffer) })
	}
	serve(p.accept)
	p.working.Wait()
	select {
	case err := <-failed:
		return fmt.Errorf("serve DNS: %w", err)
	default:
		return nil
	}
}

// untilItFails repeats a step until ctx ends, or until it has failed so often in a row that it will
// not work any more. A single failure may be a shortage of what the sandbox can use up for a
// moment, such as memory for sockets.
func untilItFails(ctx context.Context, step func(context.Context) error) error {
	for failures := 0; ; {
		err := step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
			continue
		}
		if failures++; failures == maxFailures {
			return err
		}
		pause := time.NewTimer(failurePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}
