package network

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestLinkLocal: what clouds have at link-local addresses is not reached, but for a name server.
func TestLinkLocal(t *testing.T) {
	const metadata = "169.254.169.254"
	own := &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(metadata + "/32"))}
	change := func(address func(netlink.Link, *netlink.Addr) error) error {
		return in(outside, func() error {
			link, err := netlink.LinkByName("down0")
			if err != nil {
				return err
			}
			return address(link, own)
		})
	}
	if err := change(netlink.AddrAdd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := change(netlink.AddrDel); err != nil {
			t.Error(err)
		}
	})
	var server net.Listener
	var datagrams net.PacketConn
	err := in(outside, func() (err error) {
		if server, err = net.Listen("tcp4", metadata+":53"); err == nil {
			datagrams, err = net.ListenPacket("udp4", metadata+":53")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() { answer(server, "names") })
	done.Go(func() { echo(datagrams) })
	t.Cleanup(func() { _, _ = server.Close(), datagrams.Close(); done.Wait() })

	write := resolverFile(t)
	write("nameserver 192.0.2.53\n")
	n := openNetwork(t, options(t, "local0"))
	a := startContainer(t, n, "a", netip.Addr{})
	wantAnswer(t, "", at(metadata, outsidePort), "outside "+hostAddress)
	wantSilence(t, a.ns, at(metadata, outsidePort))
	wantSilence(t, a.ns, at(metadata, 53))

	write("nameserver 192.0.2.53\nnameserver " + metadata + "\n")
	b := startContainer(t, n, "b", netip.Addr{})
	wantAnswer(t, b.ns, at(metadata, 53), "names "+hostAddress)
	if err := in(b.ns, func() error { return echoed(at(metadata, 53)) }); err != nil {
		t.Errorf("the name server does not answer over UDP: %v", err)
	}
	wantSilence(t, b.ns, at(metadata, outsidePort))
	wantSilence(t, b.ns, at("169.254.1.1", 53))
}
