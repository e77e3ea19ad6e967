package listen

import (
	"context"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Arrivals follows the connections of a service, and what has arrived on them without an answer. A
// request counts from its first byte, which may wait in the kernel, until its answer was handed to
// the kernel.
type Arrivals struct {
	mu       sync.Mutex
	listener syscall.Conn // nil before [Serve], and where connections are not accepted by TCP
	open     map[*connection]struct{}
}

// NewArrivals returns the arrivals for [Options.Arrivals] of one service.
func NewArrivals() *Arrivals { return &Arrivals{open: make(map[*connection]struct{})} }

// Pending reports whether there is a connection that was not accepted, or a part of a request that
// was not answered. Requests that [Disregard] was called for do not count, nor do connections that
// a handler has taken over.
func (a *Arrivals) Pending() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener != nil && readable(a.listener) {
		return true
	}
	for conn := range a.open {
		if conn.arrived.Load() || readable(conn.TCPConn) {
			return true
		}
	}
	return false
}

// Disregard has the request that ctx belongs to not count as pending.
func Disregard(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*connection); ok {
		conn.arrived.Store(false)
	}
}

// listen takes the listener. A nil Arrivals does nothing, here and below.
func (a *Arrivals) listen(ln net.Listener) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listener, _ = ln.(syscall.Conn)
}

func (a *Arrivals) add(conn *connection) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[conn] = struct{}{}
}

func (a *Arrivals) remove(conn *connection) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, conn)
}

// readable reports whether the kernel has something that was not read, or not accepted.
func readable(socket syscall.Conn) bool {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	_ = raw.Control(func(fd uintptr) { // it fails for a socket that is closed
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		ready = err == nil && n > 0 && fds[0].Revents&unix.POLLIN != 0
	})
	return ready
}
