package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	// maxWaiting is how many connections to the published ports of a container wait for it.
	maxWaiting = 64
	// maxPassed is how many connections of one hold wait or are passed on.
	maxPassed = 1024
	// holdTimeout is how long a connection waits.
	holdTimeout = 30 * time.Second
	// drainTime is for how long connections are taken on that were begun before the table had the
	// published ports again.
	drainTime = time.Second
	// The pauses between attempts to connect to a container, which is being started, and after a
	// connection that could not be accepted.
	firstDialPause   = 5 * time.Millisecond
	longestDialPause = 50 * time.Millisecond
)

// errNoPort is the cause for a connection to a container that was removed.
var errNoPort = errors.New("the container has no published port")

// hold has the connections to the published ports of one container wait at this host.
type hold struct {
	network   *Network
	container string
	notify    func()
	listeners []*net.TCPListener
	waiting   chan struct{} // has an element for each connection that waits
	passed    chan struct{} // has an element for each connection that waits or is passed on
	released  bool          // the network's mu is held
}

// Hold has new connections to the published ports of a container wait, which is attached or was
// detached by [Network.DetachKeeping], and calls notify for each. They are connected to the
// container, with what the client has sent, once it is attached again and listens, or
// [Network.Reopen] is called, and are closed when that takes longer than 30 seconds, as are those
// beyond 64. Release ends that; the connections that wait go on. Errors wrap [engine.ErrNotRunning]
// where no port of the container is published, or [engine.ErrNetwork].
func (n *Network) Hold(container string, notify func()) (release func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.holds[container]
	a, attached := n.attached[container]
	if !attached {
		a = n.kept[container]
	}
	switch {
	case n.closed:
		return nil, fmt.Errorf("%w: %w", engine.ErrNetwork, errClosed)
	case a == nil || len(a.reserved) == 0 || len(a.reserved) != len(a.Ports):
		return nil, fmt.Errorf("%w: it has no published port", engine.ErrNotRunning)
	case before != nil && !before.released:
		return nil, fmt.Errorf("%w: connections to it wait already", engine.ErrNetwork)
	}
	h := &hold{network: n, container: container, notify: notify, waiting: make(chan struct{}, maxWaiting), passed: make(chan struct{}, maxPassed)}
	if before != nil {
		before.close()
	}
	n.holds[container] = h
	if err := n.beginHold(h, a, attached); err != nil {
		h.close()
		n.endHold(h)
		return nil, fmt.Errorf("%w: let connections to container %s wait: %w", engine.ErrNetwork, container, err)
	}
	return func() { n.releaseHold(h) }, nil
}

// beginHold listens at the published ports and then removes these from the table, so that no
// connection is refused. The caller holds mu.
func (n *Network) beginHold(h *hold, a *attached, attached bool) error {
	ports := make([]int, 0, len(a.reserved))
	for port, socket := range a.reserved {
		listener, err := listen(socket)
		if err != nil {
			return err
		}
		h.listeners, ports = append(h.listeners, listener), append(ports, port)
	}
	if attached {
		a.stopping = true
	}
	if attached && !a.held {
		a.held = true
		if err := n.filter.dropPorts(a.Attachment); err != nil {
			if err := n.rewrite(); err != nil { // another program may have removed the table
				a.held, a.stopping = false, false
				return err
			}
		}
	}
	for i, listener := range h.listeners {
		n.running.Go(func() { h.accept(listener, ports[i]) })
	}
	return nil
}

// releaseHold publishes the ports of a container again that is attached, before nothing listens
// there any more.
func (n *Network) releaseHold(h *hold) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.released || n.closed {
		return
	}
	h.released = true
	if err := n.drain(h); err != nil {
		n.log.Error().Err(err).Str("container_id", h.container).
			Msg("cannot publish the ports of a container again, to which connections are passed on until that succeeds; retried every second")
	}
}

// drain ends a hold that is released, after the table has the ports of the container again. The
// caller holds mu.
func (n *Network) drain(h *hold) error {
	if n.closed || n.holds[h.container] != h {
		return nil
	}
	next := func() error {
		h.close()
		n.endHold(h)
		return nil
	}
	a := n.attached[h.container]
	if a == nil {
		return next()
	}
	err := n.reopen(a)
	if err != nil {
		next = func() error { return n.drain(h) }
	}
	time.AfterFunc(drainTime, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		_ = next() // it was logged
	})
	return err
}

// endHold lets the sockets of the published ports listen no more, unless connections wait again.
// The caller holds mu.
func (n *Network) endHold(h *hold) {
	if n.closed || n.holds[h.container] != h {
		return
	}
	delete(n.holds, h.container)
	for _, a := range []*attached{n.attached[h.container], n.kept[h.container]} {
		if a == nil {
			continue
		}
		for _, socket := range a.reserved {
			unlisten(socket)
		}
	}
}

// dropHold ends the hold of a container that is about to lose its ports. The caller holds mu.
func (n *Network) dropHold(container string) {
	if h := n.holds[container]; h != nil {
		h.released = true
		h.close()
		delete(n.holds, container)
	}
}

// Reopen has connections to the published ports of a container go to it that is attached, and whose
// connections wait.
func (n *Network) Reopen(container string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.attached[container]
	if a == nil || n.closed {
		return nil
	}
	if err := n.reopen(a); err != nil {
		return fmt.Errorf("%w: publish the ports of %s again: %w", engine.ErrNetwork, container, err)
	}
	return nil
}

// reopen is Reopen. The caller holds mu.
func (n *Network) reopen(a *attached) error {
	if !a.held {
		return nil
	}
	a.held, a.stopping = false, false
	n.noteOpened()
	if err := n.filter.addPorts(a.Attachment); err != nil {
		if err := n.rewrite(); err != nil {
			a.held = true
			return err
		}
	}
	return nil
}

// noteOpened has the connections look again that wait for a container. The caller holds mu.
func (n *Network) noteOpened() {
	close(n.opened)
	n.opened = make(chan struct{})
}

// close accepts no more connections.
func (h *hold) close() {
	for _, listener := range h.listeners {
		_ = listener.Close()
	}
}

// accept accepts connections to a port of the container until the listener is closed, also by the
// end of the network. Nothing is read from them before the container runs.
func (h *hold) accept(listener *net.TCPListener, port int) {
	defer context.AfterFunc(h.network.serving, func() { _ = listener.Close() })()
	for {
		client, err := listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // this process has too many open files, for example
			select {
			case <-time.After(longestDialPause):
			case <-h.network.serving.Done():
			}
			continue
		}
		if !h.admit() {
			reset(client)
			continue
		}
		h.notify()
		h.network.running.Go(func() {
			h.serve(client, port)
			<-h.passed
			<-h.network.passed
		})
	}
}

// admit counts one more connection, which waits. It returns false where there are too many.
func (h *hold) admit() bool {
	counted := []chan struct{}{h.network.passed, h.passed, h.waiting}
	for i, count := range counted {
		select {
		case count <- struct{}{}:
		default:
			for _, before := range counted[:i] {
				<-before
			}
			return false
		}
	}
	return true
}

// maxPassedOfAll returns how many connections of all containers wait or are passed on: each takes
// up to six descriptors, and most of those that this process may have are for other work.
func maxPassedOfAll() int {
	const part, least, most = 32, 64, 8192
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return least
	}
	return int(max(least, min(most, limit.Cur/part)))
}

// serve connects a client to the port of the container, once that is open.
func (h *hold) serve(client *net.TCPConn, port int) {
	ctx, cancel := context.WithTimeout(h.network.serving, holdTimeout)
	server, a, err := h.dial(ctx, port)
	cancel()
	<-h.waiting
	if err != nil {
		reset(client)
		return
	}
	join(h.network.serving, a.gone, client, server)
}

// dial connects to the port of the container until that succeeds.
func (h *hold) dial(ctx context.Context, port int) (*net.TCPConn, *attached, error) {
	for pause := firstDialPause; ; {
		a, opened := h.network.isOpen(h.container)
		if a == nil && opened == nil {
			return nil, nil, errNoPort
		}
		if a == nil {
			pause = firstDialPause
			select {
			case <-opened:
				continue
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
		}
		server, err := a.dial(ctx, port)
		if err == nil {
			return server, a, nil
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, longestDialPause)
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// dial connects to a port of the container, for as long as that is attached: another one may have
// its address later.
func (a *attached) dial(ctx context.Context, port int) (*net.TCPConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	var dialer net.Dialer
	return dialer.DialTCP(ctx, "tcp4", netip.AddrPort{}, netip.AddrPortFrom(a.Address, uint16(port)))
}

// isOpen returns a container that is attached, and to which connections may go; or nil, and what is
// closed when another container may be open. It returns nil twice for a container that has no port
// any more.
func (n *Network) isOpen(container string) (*attached, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch a := n.attached[container]; {
	case a == nil && n.kept[container] == nil:
		return nil, nil
	case a == nil || a.stopping:
		return nil, n.opened
	default:
		return a, nil
	}
}

// listen has a socket listen that reserves a port. The listener is another descriptor of it.
func listen(socket int) (*net.TCPListener, error) {
	// Connections that it has accepted earlier would be in its way otherwise. While a socket
	// listens no other one can have its port, and before and after that it has not set this.
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Listen(socket, maxWaiting); err != nil {
		_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
		return nil, os.NewSyscallError("listen", err)
	}
	other, err := unix.FcntlInt(uintptr(socket), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unlisten(socket)
		return nil, os.NewSyscallError("dup", err)
	}
	file := os.NewFile(uintptr(other), "published port")
	listener, err := net.FileListener(file)
	_ = file.Close()
	if err != nil {
		unlisten(socket)
		return nil, err
	}
	return listener.(*net.TCPListener), nil //nolint:errcheck,forcetypeassert // the socket is one of TCP
}

// unlisten has a socket listen no more, which stays bound to its port.
func unlisten(socket int) {
	_ = unix.Shutdown(socket, unix.SHUT_RD)
	_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
}
