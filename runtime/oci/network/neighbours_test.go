package network

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestNeighbours: what a container sends makes no entries in the kernel's table of neighbours, which
// is one for all namespaces.
func TestNeighbours(t *testing.T) {
	n := openNetwork(t, options(t, "neigh0"))
	c := startContainer(t, n, "c", netip.Addr{})
	eventually(t, "namespaces are made ahead", func() bool { return len(n.ready) == cap(n.ready) })
	before := entries(t, "", n.bridge.name)
	for name, a := range map[string]struct {
		prefix  string
		prepare func(socket, eth0 int) error
	}{
		"to the subnet": {"10.77.0.0/16", func(_, _ int) error { return nil }},
		"past the routes": {"10.77.0.0/16", func(socket, _ int) error {
			return errors.Join(unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DONTROUTE, 1),
				unix.SetsockoptString(socket, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0"))
		}},
		"to groups": {"239.1.0.0/16", func(_, _ int) error { return nil }},
		"to groups at eth0": {"239.2.0.0/16", func(socket, eth0 int) error {
			return unix.SetsockoptIPMreqn(socket, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(eth0)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			err := in(c.ns, func() error { return spray(netip.MustParsePrefix(a.prefix), a.prepare) })
			if err != nil {
				t.Fatal(err)
			}
			if got := entries(t, c.ns, "eth0"); got != 1 {
				t.Errorf("the container has %d neighbours, want the gateway", got)
			}
			if got := entries(t, "", n.bridge.name); got != before {
				t.Errorf("the host has %d neighbours at the bridge, and had %d", got, before)
			}
		})
	}
	wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	wantAnswer(t, outside, at(hostAddress, c.Ports[containerPort]), "c "+outsideAddress)
	wantAnswer(t, "", at("127.0.0.1", c.Ports[containerPort]), "c "+c.Gateway.String())
}

// spray sends a datagram to each of 600 addresses of the prefix, from this thread's namespace.
func spray(prefix netip.Prefix, prepare func(socket, eth0 int) error) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	if err := prepare(socket, eth0.Attrs().Index); err != nil {
		return err
	}
	to := prefix.Addr().Next()
	for range 600 {
		if to = to.Next(); to == prefix.Addr().Next().Next().Next() {
			continue
		}
		// Answers to earlier ones are errors of later ones.
		_ = unix.Sendto(socket, []byte("."), 0, &unix.SockaddrInet4{Port: 9, Addr: to.As4()})
	}
	return nil
}

// entries is how many neighbours an interface of the namespace has, in whatever state.
func entries(t *testing.T, namespace, name string) int {
	t.Helper()
	var found int
	count := func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		all, err := list(func() ([]netlink.Neigh, error) {
			return netlink.NeighList(link.Attrs().Index, unix.AF_INET)
		})
		found = len(all)
		return err
	}
	var err error
	if namespace == "" {
		err = count()
	} else {
		err = in(namespace, count)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}
