package listen

import (
	"container/list"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// unauthenticatedHeader is how many bytes of its request each connection without an authenticated
// one may have sent on average, when there are as many as there may be.
const unauthenticatedHeader = 4 << 10

// lingering is how long the service reads and drops what a client still sends, before it closes a
// connection after a response that came before the end of the request's body. Closed at once, the
// connection would be reset, and the client could lose the response that it has not read yet (RFC
// 9112, section 9.6).
const lingering = 4 * time.Second

// connections are what a service has accepted. It bounds those on which no request has been
// authenticated: their number, and what they have sent of the requests that are being read or
// answered. Beyond either bound an older one is closed rather than a new one refused: a client with
// a key shows it in its first request, before others can open so many connections, and so they do
// not keep it out.
type connections struct {
	net.Listener
	limit int // of those without an authenticated request; 0 means no bound
	most  int // of all; 0 means no bound

	arrivals *Arrivals // nil unless they are followed

	mu     sync.Mutex
	left   sync.Cond // signals that there is one less
	all    int
	closed bool
	conns  list.List // of *connection, by when they or their last requests began, the oldest first
	bytes  int
}

func newConnections(ln net.Listener, options Options) *connections {
	u := &connections{Listener: ln, limit: options.MaxUnauthenticated, most: options.MaxConnections, arrivals: options.Arrivals}
	u.left.L = &u.mu
	return u
}

// Accept implements net.Listener. A connection beyond the bound waits until another one ends, or
// takes the place of one without an authenticated request.
func (u *connections) Accept() (net.Conn, error) {
	conn, err := u.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	counted := &connection{TCPConn: tcp, of: u}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.limit > 0 {
		counted.counts.Store(true)
		if u.conns.Len() == u.limit {
			u.cutOldest()
		}
	}
	for u.most > 0 && u.all >= u.most && !u.closed {
		if u.conns.Len() > 0 {
			u.cutOldest()
			break
		}
		u.left.Wait()
	}
	if u.closed {
		_ = tcp.Close()
		return nil, net.ErrClosed
	}
	u.all++
	counted.open = true
	u.arrivals.add(counted)
	if u.limit > 0 {
		counted.place = u.conns.PushBack(counted)
	}
	return counted, nil
}

// Close implements net.Listener. A connection that waits is closed.
func (u *connections) Close() error {
	u.mu.Lock()
	u.closed = true
	u.left.Broadcast()
	u.mu.Unlock()
	return u.Listener.Close()
}

// cutOldest closes the connection without an authenticated request that has waited longest. The
// caller holds mu.
func (u *connections) cutOldest() { u.cut(u.conns.Front().Value.(*connection)) }

// received counts bytes of a request. When there are too many of all, the oldest connection that
// has sent more than its share is closed.
func (u *connections) received(conn *connection, bytes int) {
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
		oldest := place.Value.(*connection)
		place = place.Next()
		if oldest.bytes > unauthenticatedHeader {
			u.cut(oldest)
		}
	}
}

// cut closes a connection, and leaves nothing of it in the kernel. The caller holds mu.
func (u *connections) cut(conn *connection) {
	u.drop(conn)
	u.end(conn)
	_ = conn.SetLinger(0)
	_ = conn.TCPConn.Close()
}

// drop does not count a connection any more. The caller holds mu.
func (u *connections) drop(conn *connection) {
	if conn.place == nil {
		return
	}
	u.conns.Remove(conn.place)
	u.bytes -= conn.bytes
	conn.place, conn.bytes = nil, 0
	conn.counts.Store(false)
}

// end counts a connection as closed. The caller holds mu.
func (u *connections) end(conn *connection) {
	if conn.open {
		conn.open = false
		u.arrivals.remove(conn)
		u.all--
		u.left.Signal()
	}
}

func (u *connections) forget(conn *connection) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(conn)
}

// changed is called by net/http. A connection that waits for its next request holds nothing of the
// one before.
func (u *connections) changed(conn net.Conn, state http.ConnState) {
	counted, ok := conn.(*connection)
	if !ok {
		return
	}
	if state == http.StateHijacked {
		counted.hijacked.Store(true)
		u.arrivals.remove(counted)
	}
	if state != http.StateIdle {
		return
	}
	counted.arrived.Store(false)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes -= counted.bytes
	counted.bytes = 0
}

// connection is a connection that counts until one of its requests is authenticated, or it is
// closed.
type connection struct {
	*net.TCPConn
	of       *connections
	counts   atomic.Bool
	hijacked atomic.Bool
	arrived  atomic.Bool // a part of a request that was not answered, see Arrivals

	// of.mu guards these.
	open  bool
	place *list.Element // nil once it does not count
	bytes int
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 {
		c.arrived.Store(true)
	}
	if n > 0 && c.counts.Load() {
		c.of.received(c, n)
	}
	return n, err
}

// CloseWrite ends the response. net/http calls it when it is about to close a connection on which
// the client may still be sending the body of its request; what comes of it is dropped here. For a
// handler that has taken the connection over it is the end of one direction.
func (c *connection) CloseWrite() error {
	if err := c.TCPConn.CloseWrite(); err != nil || c.hijacked.Load() {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(lingering)); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, c.TCPConn) // until the client closes, too, or its time is over
	return nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.drop(c)
	c.of.end(c)
	c.of.mu.Unlock()
	return c.TCPConn.Close()
}

type connKey struct{}

// MaxUnauthenticated returns a value for [Options.MaxUnauthenticated] that leaves most of the
// process's descriptors to others: 1024, or a quarter of what the process may have. Their requests
// may take 4 MiB of memory together.
func MaxUnauthenticated() int {
	const most = 1024
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur > 4*most {
		return most
	}
	return max(1, int(files.Cur/4))
}

// NoteAuthenticated exempts the connection of the request that ctx belongs to from
// [Options.MaxUnauthenticated]. Package serve calls it for every request that it authenticates
// itself; it is for handlers that do so.
func NoteAuthenticated(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*connection); ok && conn.counts.Load() {
		conn.of.forget(conn)
	}
}
