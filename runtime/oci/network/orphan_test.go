package network

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/test/wait"
)

// leaveOrphan makes a TCP connection in this thread's namespace, from the address, that the kernel
// holds after its socket is closed: it has data for a peer that answers nothing.
func leaveOrphan(from netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// In this mode connect makes a connection without a handshake.
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_ON); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4(), Port: 4000}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	peer := netip.MustParseAddr(outsideAddress).As4()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: peer, Port: 4000}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, unix.TCP_REPAIR_OFF_NO_WP)
	if err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	_, err = unix.Write(fd, []byte("data"))
	return os.NewSyscallError("write", err)
}

// TestOrphanedConnections: a container that leaves connections, for which the kernel keeps its
// namespace for minutes, keeps no port of the bridge.
func TestOrphanedConnections(t *testing.T) {
	o := options(t, "orphan0")
	o.Ready, o.Quarantine = 0, 0
	n := openNetwork(t, o)
	iptables(t, "iptables -I FORWARD -p tcp --sport 4000 -j DROP") // and the peer does not refuse them
	defer iptables(t, "iptables -D FORWARD -p tcp --sport 4000 -j DROP")
	c := startContainer(t, n, "c", netip.Addr{})
	if err := in(c.ns, func() error { return leaveOrphan(c.Address) }); err != nil {
		t.Fatal(err)
	}
	c.stop()
	began := time.Now()
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the container's port is removed", func() bool { return len(ports(t, n)) == 0 })
	t.Logf("the port was there for %v", time.Since(began))
	next := startContainer(t, n, "next", netip.Addr{})
	wantAnswer(t, next.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
}

// TestManyOrphanedPorts: while many ports are removed one by one, and after it, the addresses of
// others do not stay taken for many times as long.
func TestManyOrphanedPorts(t *testing.T) {
	o := options(t, "orphan2")
	o.Ready, o.Quarantine = 0, 0
	n := openNetwork(t, o)
	var all []*namespace
	for range 60 {
		ns, err := n.makeNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.close() // the kernel keeps it until then
		all = append(all, ns)
	}
	n.mu.Lock()
	for _, ns := range all {
		n.noteDetached(ns.address)
	}
	for i := range n.detached {
		n.detached[i].at = time.Now().Add(-time.Minute)
	}
	n.mu.Unlock()
	wait.Until(t, "the first port is removed", func() bool { return len(ports(t, n)) < len(all) })
	began := time.Now()
	wait.Until(t, "all ports are removed", func() bool { return len(ports(t, n)) == 0 })
	removing := time.Since(began)
	ns, err := n.makeNamespace()
	if err != nil {
		t.Fatal(err)
	}
	ns.close()
	began = time.Now()
	n.returnAddress(ns.address)
	wait.Until(t, "the address of another is free", func() bool {
		n.addresses.mu.Lock()
		defer n.addresses.mu.Unlock()
		return !n.addresses.taken[ns.address]
	})
	if took, most := time.Since(began), max(5*time.Second, 10*removing); took > most { // 19 times otherwise
		t.Errorf("the ports were removed within %v, and the next address is free after %v", removing, took)
	}
}

// TestOrphanedConnectionsAtClose: the same when the service is stopped at once.
func TestOrphanedConnectionsAtClose(t *testing.T) {
	o := options(t, "orphan1")
	o.Ready = 0
	n := openNetwork(t, o)
	c := startContainer(t, n, "c", netip.Addr{})
	if err := in(c.ns, func() error { return leaveOrphan(c.Address) }); err != nil {
		t.Fatal(err)
	}
	c.stop()
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
	n.Close()
	if left := ports(t, n); len(left) != 0 {
		t.Errorf("after Close there is %q", left)
	}
}
