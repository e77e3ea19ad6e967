package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// watched is a container whose traffic is watched.
type watched struct {
	reports atomic.Int64
	stop    func()
	ended   chan struct{} // closed when the Watch is
}

// watchTraffic watches the traffic of a container until the test ends.
func watchTraffic(t *testing.T, n *Network, name string) *watched {
	t.Helper()
	watch, err := n.WatchTraffic(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watched{ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		watch.Report(ctx, func() { w.reports.Add(1) })
	}()
	w.stop = func() {
		cancel()
		<-w.ended
	}
	t.Cleanup(w.stop)
	return w
}

func (w *watched) wantReport(t *testing.T) {
	t.Helper()
	wait.Until(t, "a packet is reported", func() bool { return w.reports.Load() > 0 })
}

func (w *watched) wantNoReport(t *testing.T) {
	t.Helper()
	if wait.Within(refusal, func() bool { return w.reports.Load() > 0 }) {
		t.Error("a packet is reported")
	}
}

// startConnected starts a container, and returns when packets come to it and from it.
func startConnected(t *testing.T, n *Network, name string) container {
	t.Helper()
	c := startContainer(t, n, name, netip.Addr{})
	wantAnswer(t, "", at(c.Address, containerPort), name+" "+c.gateway.String())
	return c
}

// serveDatagrams answers datagrams in the outside until the test ends, and returns their port.
func serveDatagrams(t *testing.T) (port int) {
	t.Helper()
	var socket *net.UDPConn
	err := in(outside, func() (err error) {
		socket, err = net.ListenUDP("udp4", &net.UDPAddr{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var buffer [100]byte
		for {
			read, from, err := socket.ReadFromUDPAddrPort(buffer[:])
			if err != nil {
				return
			}
			_, _ = socket.WriteToUDPAddrPort(buffer[:read], from)
		}
	}()
	t.Cleanup(func() {
		_ = socket.Close()
		wait.For(t, "the end of the socket", ended)
	})
	return socket.LocalAddr().(*net.UDPAddr).Port
}

// sendDatagram sends a datagram from the namespace, and returns without waiting for an answer.
func sendDatagram(t *testing.T, namespace, address string) *net.UDPConn {
	t.Helper()
	var conn net.Conn
	dial := func() (err error) {
		conn, err = net.Dial("udp4", address)
		return err
	}
	err := error(nil)
	if namespace == "" {
		err = dial()
	} else {
		err = in(namespace, dial)
	}
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte("hello"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UDPConn)
}

// TestTraffic: packets are reported by whichever way they come to a container.
func TestTraffic(t *testing.T) {
	n := openNetwork(t, options(t, "traffic0"))
	c := startConnected(t, n, "c")
	echo := serveDatagrams(t)
	for name, connect := range map[string]func(){
		"from the loopback interface":   func() { wantAnswer(t, "", at("127.0.0.1", c.Ports[containerPort]), "c "+c.gateway.String()) },
		"from the host":                 func() { wantAnswer(t, "", at(hostAddress, c.Ports[containerPort]), "c "+hostAddress) },
		"by the container's address":    func() { wantAnswer(t, "", at(c.Address, containerPort), "c "+c.gateway.String()) },
		"from outside":                  func() { wantAnswer(t, outside, at(hostAddress, c.Ports[containerPort]), "c "+outsideAddress) },
		"answers to the container":      func() { wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress) },
		"a datagram of the host":        func() { sendDatagram(t, "", at(c.Address, containerPort)) },
		"an answer to a datagram of it": func() { sendDatagram(t, c.ns, at(outsideAddress, echo)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := watchTraffic(t, n, "c")
			w.wantNoReport(t)
			connect()
			w.wantReport(t)
		})
	}
}

// TestTrafficOfOthers: what another container sends, or what is for everyone on the bridge, is not
// reported, and neither is what the tables drop.
func TestTrafficOfOthers(t *testing.T) {
	n := openNetwork(t, options(t, "traffic1"))
	c := startConnected(t, n, "c")
	d := startConnected(t, n, "d")
	echo := serveDatagrams(t)
	w := watchTraffic(t, n, "c")
	for _, address := range []string{
		at(c.Address, containerPort), at(hostAddress, c.Ports[containerPort]), at(n.bridge.gateway, c.Ports[containerPort]),
	} {
		wantSilence(t, d.ns, address)
		sendDatagram(t, d.ns, address)
	}
	if err := in(d.ns, func() error { return forge(c.Address, netip.MustParseAddr(outsideAddress), echo) }); err != nil {
		t.Error(err)
	}
	wantAnswer(t, "", at("127.0.0.1", d.Ports[containerPort]), "d "+d.gateway.String())
	wantAnswer(t, outside, at(hostAddress, d.Ports[containerPort]), "d "+outsideAddress)
	wantSilence(t, outside, at(hostAddress, containerPort))
	for _, address := range []string{at(broadcast(n.bridge.prefix), 9), at("239.1.2.3", 9)} { // of the host itself
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: n.bridge.gateway.AsSlice()}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
		if err == nil {
			_, err = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
		if err != nil {
			t.Errorf("send to %s: %v", address, err)
		}
	}
	w.wantNoReport(t)
}

// forge sends a datagram with an invented sender from this thread's namespace.
func forge(from, to netip.Addr, port int) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	packet := []byte{0x45, 0, 0, 29, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	packet = append(append(packet, from.AsSlice()...), to.AsSlice()...)
	packet = append(packet, 0, 9, byte(port>>8), byte(port), 0, 9, 0, 0, 'x') // without a checksum
	return unix.Sendto(socket, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// TestTrafficIdle: what an idle connection sends, and its end, is not reported; data on it is.
func TestTrafficIdle(t *testing.T) {
	n := openNetwork(t, options(t, "traffic2"))
	c := startConnected(t, n, "c")
	var listener net.Listener
	err := in(c.ns, func() (err error) {
		listener, err = net.Listen("tcp4", ":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	connect := func() *net.TCPConn {
		conn, err := net.DialTimeout("tcp4", at(c.Address, port), wait.Patience())
		if err != nil {
			t.Fatal(err)
		}
		return conn.(*net.TCPConn)
	}
	idle, ending := connect(), connect()
	defer func() { _, _ = idle.Close(), ending.Close() }()
	accepted, err := listener.Accept() // idle, which sent its SYN first
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()

	w := watchTraffic(t, n, "c")
	if err := idle.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 1e9, Interval: 1e9, Count: 9}); err != nil {
		t.Fatal(err)
	}
	_ = ending.Close()
	if _, err := accepted.Write([]byte("of the container")); err != nil { // which the host acknowledges
		t.Fatal(err)
	}
	sent := segments(t, idle)
	wait.Until(t, "probes are sent", func() bool { return segments(t, idle) > sent+1 })
	w.wantNoReport(t)
	if _, err := idle.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	w.wantReport(t)
}

// segments is how many a connection has sent.
func segments(t *testing.T, conn *net.TCPConn) uint32 {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	failed := raw.Control(func(socket uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(socket), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err := errors.Join(failed, err); err != nil {
		t.Fatal(err)
	}
	return info.Segs_out
}

// packetSockets is how many there are in this network namespace.
func packetSockets(t *testing.T) int {
	t.Helper()
	list, err := os.ReadFile("/proc/self/net/packet")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(list), "\n") - 1
}

// TestTrafficEnds: neither watches that were stopped nor those of a container that has ended leave
// a socket.
func TestTrafficEnds(t *testing.T) {
	n := openNetwork(t, options(t, "traffic3"))
	c := startConnected(t, n, "c")
	before := packetSockets(t)
	for range 100 {
		watchTraffic(t, n, "c").stop()
	}
	if got := packetSockets(t); got != before {
		t.Errorf("there are %d packet sockets, and were %d", got, before)
	}
	first, second := watchTraffic(t, n, "c"), watchTraffic(t, n, "c")
	if got := packetSockets(t); got != before+2 {
		t.Errorf("there are %d packet sockets, and were %d", got, before)
	}
	removeTable(t, n.bridge.name) // which the watches do not need
	sendDatagram(t, "", at(c.Address, containerPort))
	first.wantReport(t)
	second.wantReport(t)
	c.stop()
	wait.For(t, "the end of the first watch", first.ended)
	wait.For(t, "the end of the second watch", second.ended)
	if got := packetSockets(t); got != before {
		t.Errorf("there are %d packet sockets, and were %d", got, before)
	}
	if _, err := n.WatchTraffic("c"); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("a container without its network is watched: %v", err)
	}
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.WatchTraffic("c"); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("a container that is detached is watched: %v", err)
	}
}
