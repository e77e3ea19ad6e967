package network

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/test/wait"
)

// TestFlowsOfDeparted: the peer of a container that is gone does not reach the next container with
// its address.
func TestFlowsOfDeparted(t *testing.T) {
	o := options(t, "departed0")
	o.Subnet, o.Ready, o.Quarantine = netip.MustParsePrefix("10.79.0.0/29"), 0, 0
	n := openNetwork(t, o)
	a := startContainer(t, n, "a", netip.Addr{})
	peer, err := outsidePeer()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Close() }()
	var own net.Conn
	err = in(a.ns, func() (err error) { own, err = net.Dial("udp4", peer.LocalAddr().String()); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	if _, err := own.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	_ = peer.SetDeadline(wait.Deadline())
	_, source, err := peer.ReadFrom(buffer) // the host's address, with a port that leads to the container
	if err != nil {
		t.Fatal(err)
	}
	received := func(conn interface {
		SetReadDeadline(time.Time) error
		Read([]byte) (int, error)
	}, within time.Duration) bool {
		_ = conn.SetReadDeadline(time.Now().Add(within))
		if _, err := peer.WriteTo([]byte("!"), source); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Read(buffer)
		return err == nil
	}
	if !received(own, wait.Patience()) {
		t.Fatal("the container gets no answer")
	}
	wantAnswer(t, outside, at(hostAddress, a.Ports[containerPort]), "a "+outsideAddress)
	if began, answered := flowsOf(t, a.Address); began == 0 || answered == 0 {
		t.Fatalf("the host has %d connections that the container began, %d that it answered", began, answered)
	}
	if err := n.Detach("a"); err != nil {
		t.Fatal(err)
	}
	a.stop()

	b := attachAt(t, n, a.Address)
	var next *net.UDPConn
	err = in(b.Path, func() (err error) {
		next, err = net.ListenUDP("udp4", &net.UDPAddr{Port: own.LocalAddr().(*net.UDPAddr).Port})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }()
	if received(next, refusal) {
		t.Error("a packet for the first container reaches the second")
	}
	if began, answered := flowsOf(t, a.Address); began+answered > 0 {
		t.Errorf("the host has %d connections that the container began, %d that it answered", began, answered)
	}
}

// TestFlowsOfDepartedBefore: connections of containers that were gone when the network was opened.
func TestFlowsOfDepartedBefore(t *testing.T) {
	n := openNetwork(t, options(t, "former0"))
	stays, gone := startContainer(t, n, "stays", netip.Addr{}), startContainer(t, n, "gone", netip.Addr{})
	for _, c := range []container{stays, gone} {
		wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
		wantAnswer(t, outside, at(hostAddress, c.Ports[containerPort]), c.Container+" "+outsideAddress)
	}
	n.Close()
	openNetwork(t, n.options, stays.Attachment)
	if began, answered := flowsOf(t, gone.Address); began+answered > 0 {
		t.Errorf("of what is gone there are %d and %d connections", began, answered)
	}
	if began, answered := flowsOf(t, stays.Address); began == 0 || answered == 0 {
		t.Errorf("of what runs there are %d and %d connections", began, answered)
	}
	stays.stop()
}

// TestFlowsThatCannotBeForgotten: the address is not given again until they can.
func TestFlowsThatCannotBeForgotten(t *testing.T) {
	o := options(t, "forget0")
	o.Subnet, o.Ready, o.Quarantine = netip.MustParsePrefix("10.79.0.0/29"), 0, 0
	n := openNetwork(t, o)
	attached, err := n.Attach(t.Context(), "a", nil, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer restore()
	if err := n.Detach("a"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the table of connections is not read without a descriptor", func() bool {
		_, err := n.removeDetachedEntries()
		return err != nil
	})
	for range 5 { // of 8, three are the network's, the host's and for broadcasts
		if address, err := n.addresses.take(); err == nil && address == attached.Address {
			t.Errorf("%v is given again", address)
		}
	}
	restore()
	wait.Until(t, "the address is given again", func() bool {
		address, err := n.addresses.take()
		return err == nil && address == attached.Address
	})
}

func outsidePeer() (peer net.PacketConn, err error) {
	err = in(outside, func() (err error) { peer, err = net.ListenPacket("udp4", at(outsideAddress, 0)); return err })
	return peer, err
}

// flowsOf is how many connections the host has that the address began, and that it answered.
func flowsOf(t *testing.T, address netip.Addr) (began, answered int) {
	t.Helper()
	all, err := list(func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, flow := range all {
		switch {
		case flow.Forward.SrcIP.Equal(address.AsSlice()):
			began++
		case flow.Reverse.SrcIP.Equal(address.AsSlice()):
			answered++
		}
	}
	return began, answered
}

// attachAt attaches containers until one has the address.
func attachAt(t *testing.T, n *Network, address netip.Addr) Namespace {
	t.Helper()
	var found Namespace
	wait.Until(t, fmt.Sprintf("%v is given again", address), func() bool {
		ns, err := n.Attach(t.Context(), "next", nil, netip.Addr{})
		if err != nil {
			return false
		}
		if ns.Address == address {
			found = ns
			return true
		}
		if err := n.Detach("next"); err != nil {
			t.Fatal(err)
		}
		return false
	})
	return found
}
