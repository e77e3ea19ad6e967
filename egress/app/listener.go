package app

import (
	"net"
	"net/netip"
	"sync"
)

// How many connections to the API may be open: in all, from one address, and from the sandbox
// itself. They are counted apart, so that neither the sandbox nor a neighbour keeps out the
// service, which may be about to deny them something.
const (
	maxConnections = 256
	maxOfOneSource = 64
	maxOfSandbox   = 8
)

// boundedListener closes connections beyond these numbers as soon as they come.
type boundedListener struct {
	net.Listener
	own func() func(netip.Addr) bool // returns what reports whether an address is the sandbox's

	mu   sync.Mutex
	all  int
	from map[netip.Addr]int // by source; those of the sandbox are under the zero address
}

func newBoundedListener(listener net.Listener, own func() func(netip.Addr) bool) *boundedListener {
	return &boundedListener{Listener: listener, own: own, from: make(map[netip.Addr]int)}
}

// Accept implements [net.Listener].
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := l.sourceOf(conn)
		if l.take(source) {
			return &countedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(source) })}, nil
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // nothing of it stays in the kernel
		}
		_ = conn.Close()
	}
}

func (l *boundedListener) sourceOf(conn net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil || at.Addr().Unmap().IsLoopback() || l.own()(at.Addr().Unmap()) {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

func (l *boundedListener) take(source netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !source.IsValid() {
		if l.from[source] == maxOfSandbox {
			return false
		}
	} else if l.all == maxConnections || l.from[source] == maxOfOneSource {
		return false
	} else {
		l.all++
	}
	l.from[source]++
	return true
}

func (l *boundedListener) release(source netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if source.IsValid() {
		l.all--
	}
	if l.from[source]--; l.from[source] == 0 {
		delete(l.from, source)
	}
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	release func()
}

// Close implements [net.Conn].
func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
