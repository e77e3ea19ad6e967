package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/test/wait"
)

// TestNeighbours: what a container sends makes no entries in the kernel's table of neighbours,
// which is one for all namespaces.
func TestNeighbours(t *testing.T) {
	n := openNetwork(t, options(t, "neigh0"))
	c := startContainer(t, n, "c", netip.Addr{})
	wait.Until(t, "namespaces are made ahead", func() bool { return len(n.ready) == cap(n.ready) })
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
	wantAnswer(t, "", at("127.0.0.1", c.Ports[containerPort]), "c "+c.gateway.String())
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

// TestForgedRequests: ARP requests with invented senders, which a container with CAP_NET_RAW can
// send, make no entries either, also after a firewall was loaded again.
func TestForgedRequests(t *testing.T) {
	o := options(t, "forged0")
	o.Ready = 0
	n := openNetwork(t, o)
	c := startContainer(t, n, "c", netip.Addr{})
	before := entries(t, "", o.Bridge)
	forge := func() {
		t.Helper()
		if err := in(c.ns, func() error { return askAs(c, netip.MustParsePrefix("10.77.100.0/24")) }); err != nil {
			t.Fatal(err)
		}
		if got := entries(t, "", o.Bridge); got != before {
			t.Errorf("the host has %d neighbours at the bridge, and had %d", got, before)
		}
	}
	forge()
	removeTableOf(t, nftables.TableFamilyARP, o.Bridge)
	wait.Until(t, "the table is made again", func() bool { return complete(n) })
	forge()
	n.Close() // and the next service replaces the table
	n = openNetwork(t, o, c.Attachment)
	forge()
	wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	wantAnswer(t, outside, at(hostAddress, c.Ports[containerPort]), "c "+outsideAddress)
	wantAnswer(t, "", at("127.0.0.1", c.Ports[containerPort]), "c "+c.gateway.String())
	c.stop()
}

// askAs sends an ARP request for the gateway from each of 200 addresses of the prefix, in this
// thread's namespace.
func askAs(c container, senders netip.Prefix) error {
	const arp = 0x0608 // ETH_P_ARP, in network byte order
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, arp)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	own, everyone := []byte(hardware(c.Address)), []byte{255, 255, 255, 255, 255, 255}
	sender := senders.Addr()
	for range 200 {
		sender = sender.Next()
		frame := slices.Concat(everyone, own, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, own, sender.AsSlice(), make([]byte, 6),
			c.gateway.AsSlice())
		err := unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth0.Attrs().Index, Protocol: arp, Halen: 6})
		if err != nil {
			return err
		}
	}
	return nil
}

// TestNoTablesForARP: a kernel without them is no reason not to start, and the log has a warning.
func TestNoTablesForARP(t *testing.T) {
	var log syncBuffer
	o := options(t, "noarp0")
	o.arpFamily = 12 // which no kernel has
	o.Logger = zerolog.New(&log)
	n := openNetwork(t, o)
	c := startContainer(t, n, "c", netip.Addr{})
	wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	if got := strings.Count(log.String(), "CONFIG_NF_TABLES_ARP"); got != 1 {
		t.Errorf("%d warnings, want 1:\n%s", got, log.String())
	}
}
