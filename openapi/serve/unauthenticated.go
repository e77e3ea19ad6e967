package serve

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// unauthenticatedHeader is how many bytes of its request each connection without an authenticated
// one may have sent on average, when there are as many as there may be.
const unauthenticatedHeader = 4 << 10

// unauthenticated bounds the connections on which no request has been authenticated: their number,
// and what they have sent of the requests that are being read or answered. Beyond either bound an
// older one is closed rather than a new one refused: a client with a key shows it in its first
// request, before others can open so many connections, and so they do not keep it out.
type unauthenticated struct {
	net.Listener
	limit int

	mu    sync.Mutex
	conns list.List // of *countedConn, by when they or their last requests began, the oldest first
	bytes int
}

// Accept implements net.Listener.
func (u *unauthenticated) Accept() (net.Conn, error) {
	conn, err := u.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	counted := &countedConn{TCPConn: tcp, all: u}
	counted.counts.Store(true)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conns.Len() == u.limit {
		u.cut(u.conns.Front().Value.(*countedConn))
	}
	counted.place = u.conns.PushBack(counted)
	return counted, nil
}

// received counts bytes of a request. When there are too many of all, the oldest connection that
// has sent more than its share is closed.
func (u *unauthenticated) received(conn *countedConn, bytes int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if conn.place == nil {
		return
	}
	if conn.bytes == 0 {
		u.conns.MoveToBack(conn.place)
	}
	conn.bytes += bytes
	u.bytes += bytes
	for place := u.conns.Front(); u.bytes > u.limit*unauthenticatedHeader; {
		oldest := place.Value.(*countedConn)
		place = place.Next()
		if oldest.bytes > unauthenticatedHeader {
			u.cut(oldest)
		}
	}
}

// cut closes a connection, and leaves nothing of it in the kernel. The caller holds mu.
func (u *unauthenticated) cut(conn *countedConn) {
	u.drop(conn)
	_ = conn.SetLinger(0)
	_ = conn.TCPConn.Close()
}

// drop does not count a connection any more. The caller holds mu.
func (u *unauthenticated) drop(conn *countedConn) {
	if conn.place == nil {
		return
	}
	u.conns.Remove(conn.place)
	u.bytes -= conn.bytes
	conn.place, conn.bytes = nil, 0
	conn.counts.Store(false)
}

func (u *unauthenticated) forget(conn *countedConn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(conn)
}

// changed is called by net/http. A connection that waits for its next request holds nothing of the
// one before.
func (u *unauthenticated) changed(conn net.Conn, state http.ConnState) {
	counted, ok := conn.(*countedConn)
	if !ok || state != http.StateIdle {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes -= counted.bytes
	counted.bytes = 0
}

// countedConn is a connection that counts until one of its requests is authenticated, or it is
// closed.
type countedConn struct {
	*net.TCPConn
	all    *unauthenticated
	counts atomic.Bool

	// all.mu guards these.
	place *list.Element // nil once it does not count
	bytes int
}

// Read implements net.Conn.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 && c.counts.Load() {
		c.all.received(c, n)
	}
	return n, err
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.all.forget(c)
	return c.TCPConn.Close()
}

type connKey struct{}

// noteAuthenticated is called for every request that is authenticated.
func noteAuthenticated(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*countedConn); ok && conn.counts.Load() {
		conn.all.forget(conn)
	}
}
