package network

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// TestSpoof: a container with every capability takes another's addresses.
func TestSpoof(t *testing.T) {
	n := openNetwork(t, options(t, "spoof0"))
	thief, victim := startContainer(t, n, "thief", netip.Addr{}), startContainer(t, n, "victim", netip.Addr{})
	wantAnswer(t, "", at("127.0.0.1", victim.Ports[containerPort]), "victim "+victim.gateway.String())
	become := func(hardwareAddress net.HardwareAddr) {
		err := in(thief.ns, func() error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			err = netlink.LinkSetHardwareAddr(eth, hardwareAddress)
			own := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(victim.Address, 16))}
			return errors.Join(err, netlink.AddrReplace(eth, own), netlink.RouteReplace(&netlink.Route{
				Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), LinkIndex: eth.Attrs().Index,
				Gw: victim.gateway.AsSlice(), Src: victim.Address.AsSlice()}),
				announce(eth.Attrs().Index, hardwareAddress, victim.Address))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, address := range map[string]net.HardwareAddr{
		"its own hardware address": hardware(thief.Address),
		"the victim's":             hardware(victim.Address),
		"another":                  {2, 1, 1, 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if !arrives(t, victim.ns) {
				t.Fatal("a packet of the victim does not arrive")
			}
			become(address)
			if arrives(t, thief.ns) {
				t.Error("a packet of the thief arrives")
			}
			wantSilence(t, thief.ns, at(outsideAddress, outsidePort))
			wantAnswer(t, "", at("127.0.0.1", victim.Ports[containerPort]), "victim "+victim.gateway.String())
			wantAnswer(t, victim.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
		})
	}
}

// arrives reports whether a datagram from the namespace arrives outside.
func arrives(t *testing.T, namespace string) bool {
	t.Helper()
	var server net.PacketConn
	err := in(outside, func() (err error) { server, err = net.ListenPacket("udp4", at(outsideAddress, 0)); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	err = in(namespace, func() error {
		client, err := net.Dial("udp4", server.LocalAddr().String())
		if err != nil {
			return err
		}
		_, err = client.Write([]byte("."))
		return errors.Join(err, client.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(refusal))
	_, _, err = server.ReadFrom(make([]byte, 1))
	return err == nil
}

// announce sends an ARP reply to everyone: the address is at the hardware address.
func announce(index int, at net.HardwareAddr, address netip.Addr) error {
	const arp = 0x0608 // ETH_P_ARP, in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, arp)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	everyone := []byte{255, 255, 255, 255, 255, 255}
	frame := slices.Concat(everyone, at, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, at, address.AsSlice(),
		everyone, address.AsSlice())
	return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: index, Protocol: arp, Halen: 6})
}

func TestQuarantine(t *testing.T) {
	o := options(t, "quarantine0")
	o.Subnet, o.Ready = netip.MustParsePrefix("10.79.0.0/29"), 0
	n := openNetwork(t, o)
	seen := map[netip.Addr]bool{}
	once := func(n *Network) error {
		ns, err := n.Attach(t.Context(), "c", nil, netip.Addr{})
		if err != nil {
			return err
		}
		if seen[ns.Address] {
			t.Errorf("%v was given again", ns.Address)
		}
		seen[ns.Address] = true
		return n.Detach("c")
	}
	for range 3 {
		if err := once(n); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	n = openNetwork(t, o)
	for range 2 {
		if err := once(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := once(n); !errors.Is(err, engine.ErrNetwork) || !strings.Contains(err.Error(), "no address is free") {
		t.Errorf("the sixth of 5 addresses: %v", err)
	}
	n.Close()
	o.Quarantine = 0
	n = openNetwork(t, o)
	clear(seen)
	for range 5 {
		if err := once(n); err != nil {
			t.Fatal(err)
		}
	}
}
