package network

import (
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"sandbox.internal/test/wait"
)

// TestNameserver: a name server on the host is reached, and nothing else there.
func TestNameserver(t *testing.T) {
	write := resolverFile(t)
	write("nameserver 192.0.2.53\n")
	n := openNetwork(t, options(t, "names0"))
	listenOnHost(t, 53)
	listenOnHost(t, hostPort)
	echoUDP(t, 53)
	a := startContainer(t, n, "a", netip.Addr{})
	if !slices.Equal(a.Nameservers, []string{"192.0.2.53"}) {
		t.Errorf("the name servers are %v", a.Nameservers)
	}
	wantSilence(t, a.ns, at(hostAddress, 53))
	write("nameserver 127.0.0.53\nnameserver " + hostAddress + "\n")
	b := startContainer(t, n, "b", netip.Addr{})
	if !slices.Equal(b.Nameservers, []string{hostAddress}) {
		t.Errorf("the name servers are %v", b.Nameservers)
	}
	wantAnswer(t, b.ns, at(hostAddress, 53), "host "+b.Address.String())
	wantSilence(t, b.ns, at(b.gateway, 53))
	wantSilence(t, b.ns, at(hostAddress, hostPort))
	if err := in(b.ns, func() error { return echoed(at(hostAddress, 53)) }); err != nil {
		t.Errorf("the name server does not answer over UDP: %v", err)
	}
}

// resolverFile makes networks read a file of the test's for the host's name servers, and returns
// what writes it.
func resolverFile(t *testing.T) (write func(content string)) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	files := resolverFiles
	resolverFiles = []string{file, file}
	t.Cleanup(func() { resolverFiles = files }) // after the network has closed, which reads it
	return func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// echoed sends a datagram and waits for the answer.
func echoed(address string) error {
	conn, err := net.Dial("udp4", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(wait.Deadline())
	if _, err = conn.Write([]byte("?")); err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	return err
}

func echoUDP(t *testing.T, port int) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(hostAddress), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() { echo(conn) })
	t.Cleanup(func() { _ = conn.Close(); done.Wait() })
}

// echo answers each datagram with its first byte, until the socket is closed.
func echo(conn net.PacketConn) {
	buffer := make([]byte, 1)
	for {
		_, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(buffer, from)
	}
}

func TestNameservers(t *testing.T) {
	for content, want := range map[string][]string{
		"":                        nil,
		"nameserver 127.0.0.53\n": nil,
		"nameserver ::1\nnameserver fe80::1%eth0\nnameserver 2001:db8::1":                              nil,
		"# nameserver 192.0.2.1\nsearch x\noptions edns0\nnameserver\t192.0.2.2 \nnameserver nonsense": {"192.0.2.2"},
		"nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4":       {"192.0.2.1", "192.0.2.2", "192.0.2.3"},
	} {
		if got := nameservers([]byte(content)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", content, got, want)
		}
	}
	r := resolver{}
	files := resolverFiles
	defer func() { resolverFiles = files }()
	resolverFiles = []string{filepath.Join(t.TempDir(), "none"), "/nowhere"}
	if r.read(); !slices.Equal(r.servers, publicServers) {
		t.Errorf("without a file the name servers are %v", r.servers)
	}
}
