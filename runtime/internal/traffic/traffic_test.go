package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	container = netip.MustParseAddr("10.1.2.3")
	other     = netip.MustParseAddr("10.1.2.4")
)

// pair is a veth pair in a network namespace of its own, with a socket at either end.
type pair struct {
	watch         *Watch // of the host's end, to container
	toContainer   int    // a socket that sends through the host's end
	fromContainer int
}

// newPair makes a pair. Its sockets are closed after the test, but for that of the Watch.
func newPair(t *testing.T) *pair {
	t.Helper()
	p, err := &pair{}, error(nil)
	thread.Run(func() { err = p.make() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(p.toContainer), unix.Close(p.fromContainer) })
	return p
}

// make makes a pair in a new namespace, which this thread and the sockets then have.
func (p *pair) make() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host0"}, PeerName: "eth0"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	for name, socket := range map[string]*int{"host0": &p.toContainer, "eth0": &p.fromContainer} {
		end, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(end)
		}
		if err == nil {
			*socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		}
		if err == nil {
			err = unix.Bind(*socket, &unix.SockaddrLinklayer{Ifindex: end.Attrs().Index})
		}
		if err == nil && name == "host0" {
			p.watch, err = Open(end.Attrs().Index, container)
		}
		if err != nil {
			return err
		}
	}
	// Until the kernel has seen that both ends are up, it drops what is sent.
	for _, name := range []string{"host0", "eth0"} {
		up := wait.Within(wait.Patience(), func() bool {
			end, err := netlink.LinkByName(name)
			return err == nil && end.Attrs().OperState == netlink.OperUp
		})
		if !up {
			return fmt.Errorf("%s does not come up", name)
		}
	}
	return nil
}

// send sends a packet through one of the sockets.
func send(t *testing.T, socket int, protocol uint16, packet []byte) {
	t.Helper()
	to := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Halen: 6, Addr: [8]byte{2, 1, 1, 1, 1, 1}}
	name, err := unix.Getsockname(socket)
	if err == nil {
		to.Ifindex = name.(*unix.SockaddrLinklayer).Ifindex
		err = unix.Sendto(socket, packet, 0, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ip is an IPv4 packet with this many bytes of options.
func ip(to netip.Addr, protocol byte, options int, content []byte) []byte {
	header := make([]byte, 20+options)
	header[0] = 4<<4 | byte(len(header)/4)
	binary.BigEndian.PutUint16(header[ipLength:], uint16(len(header)+len(content)))
	header[ipProtocol] = protocol
	copy(header[ipDestination:], to.AsSlice())
	return append(header, content...)
}

// tcp is a segment with this many bytes of options, and of payload.
func tcp(flags byte, options, payload int) []byte {
	header := make([]byte, 20+options)
	header[tcpOffset], header[tcpFlags] = byte(len(header)/4)<<4, flags
	return append(header, make([]byte, payload)...)
}

func udp(payload int) []byte {
	datagram := make([]byte, udpHeader+payload)
	binary.BigEndian.PutUint16(datagram[udpLength:], uint16(len(datagram)))
	return datagram
}

// with returns the packet with a field of 16 bits changed.
func with(packet []byte, at int, value uint16) []byte {
	binary.BigEndian.PutUint16(packet[at:], value)
	return packet
}

const (
	flagFIN = 0x01
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

func TestFilter(t *testing.T) {
	p := newPair(t)
	defer p.watch.Close()
	for name, test := range map[string]struct {
		packet []byte
		want   bool
	}{
		"SYN":                          {ip(container, unix.IPPROTO_TCP, 0, tcp(flagSYN, 20, 0)), true},
		"SYN and ACK":                  {ip(container, unix.IPPROTO_TCP, 0, tcp(flagSYN|flagACK, 20, 0)), true},
		"SYN behind options":           {ip(container, unix.IPPROTO_TCP, 40, tcp(flagSYN, 20, 0)), true},
		"data":                         {ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK|flagPSH, 12, 1)), true},
		"data behind options":          {ip(container, unix.IPPROTO_TCP, 40, tcp(flagACK, 40, 1)), true},
		"data with FIN":                {ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK|flagFIN, 12, 5)), true},
		"data of an unsaid length":     {with(ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK, 12, 100)), ipLength, 0), true},
		"first fragment":               {with(ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK, 12, 100)), ipFragment, 0x2000), true},
		"ACK":                          {ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK, 12, 0)), false},
		"ACK behind options":           {ip(container, unix.IPPROTO_TCP, 40, tcp(flagACK, 40, 0)), false},
		"ACK that is filled up":        {append(ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK, 0, 0)), 0, 0, 0, 0, 0, 0), false},
		"ACK of an unsaid length":      {with(ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK, 12, 0)), ipLength, 0), false},
		"FIN":                          {ip(container, unix.IPPROTO_TCP, 0, tcp(flagACK|flagFIN, 12, 0)), false},
		"RST":                          {ip(container, unix.IPPROTO_TCP, 0, tcp(flagRST, 0, 0)), false},
		"a header without its end":     {ip(container, unix.IPPROTO_TCP, 0, tcp(flagSYN, 0, 0)[:13]), false},
		"a packet without its end":     {ip(container, unix.IPPROTO_TCP, 0, nil)[:12], false},
		"later fragment":               {with(ip(container, unix.IPPROTO_TCP, 0, tcp(flagSYN, 0, 9)), ipFragment, 1), false},
		"datagram":                     {ip(container, unix.IPPROTO_UDP, 0, udp(1)), true},
		"datagram behind options":      {ip(container, unix.IPPROTO_UDP, 40, udp(1)), true},
		"empty datagram":               {ip(container, unix.IPPROTO_UDP, 0, udp(0)), false},
		"empty datagram, filled up":    {append(ip(container, unix.IPPROTO_UDP, 0, udp(0)), make([]byte, 18)...), false},
		"later fragment of a datagram": {with(ip(container, unix.IPPROTO_UDP, 0, udp(9)), ipFragment, 1), false},
		"echo request":                 {ip(container, unix.IPPROTO_ICMP, 0, make([]byte, 64)), false},
		"SYN to another address":       {ip(other, unix.IPPROTO_TCP, 0, tcp(flagSYN, 20, 0)), false},
		"datagram to every address":    {ip(netip.AddrFrom4([4]byte{255, 255, 255, 255}), unix.IPPROTO_UDP, 0, udp(9)), false},
	} {
		send(t, p.toContainer, unix.ETH_P_IP, slices.Clone(test.packet))
		if got := p.got(t); got != test.want {
			t.Errorf("%s: the socket gets it: %t, want %t", name, got, test.want)
		}
		// What the container sends is not reported, nor what only looks like IPv4.
		send(t, p.fromContainer, unix.ETH_P_IP, slices.Clone(test.packet))
		send(t, p.toContainer, unix.ETH_P_ARP, slices.Clone(test.packet))
		if p.got(t) {
			t.Errorf("%s: the socket gets what the container sends, or another protocol", name)
		}
	}
}

// got reports whether a packet has come. Packets are there when the call that sends them returns.
func (p *pair) got(t *testing.T) bool {
	t.Helper()
	var came bool
	err := p.watch.raw.Control(func(socket uintptr) {
		for {
			_, _, err := unix.Recvfrom(int(socket), make([]byte, 1), unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			came = true
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return came
}

// TestReport: a packet that came before Report is reported, and a flood no more often than the
// pause permits.
func TestReport(t *testing.T) {
	p := newPair(t)
	data := ip(container, unix.IPPROTO_UDP, 0, udp(1000))
	send(t, p.toContainer, unix.ETH_P_IP, data)
	var reports atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(ended)
		p.watch.Report(ctx, func() { reports.Add(1) })
	}()
	wait.Until(t, "the packet is reported", func() bool { return reports.Load() == 1 })
	for reports.Load() < 3 && time.Since(begin) < wait.Patience() {
		for range 1000 {
			send(t, p.toContainer, unix.ETH_P_IP, data)
		}
	}
	if took := time.Since(begin); took < 2*pause {
		t.Errorf("%d reports in %v", reports.Load(), took)
	}
	stop()
	wait.For(t, "the end of Report", ended)
	before := reports.Load()
	send(t, p.toContainer, unix.ETH_P_IP, data)
	if reports.Load() != before {
		t.Error("a packet was reported after the end of Report")
	}
	if err := p.watch.file.SetReadDeadline(time.Time{}); err == nil {
		t.Error("the socket is open after the end of Report")
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, open := range map[string]func() (*Watch, error){
		"IPv6":         func() (*Watch, error) { return Open(1, netip.IPv6Loopback()) },
		"no address":   func() (*Watch, error) { return Open(1, netip.Addr{}) },
		"no interface": func() (*Watch, error) { return Open(1<<30, container) },
	} {
		if w, err := open(); err == nil {
			w.Close()
			t.Errorf("%s is watched", name)
		}
	}
}
