package network

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// wantRefused wants that nothing listens at a port of this host, which is not the same as a
// connection that is never answered.
func wantRefused(t *testing.T, port int) {
	t.Helper()
	conn, err := net.DialTimeout("tcp4", at("127.0.0.1", port), wait.Patience())
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection to port %d: %v; want it refused", port, err)
	}
}

// TestHoldOfRemoved: a connection that waits for a container is closed when that is removed.
func TestHoldOfRemoved(t *testing.T) {
	n := openNetwork(t, options(t, "hold4"))
	c := startContainer(t, n, "c", netip.Addr{})
	c.stop()
	if err := n.DetachKeeping("c"); err != nil {
		t.Fatal(err)
	}
	release, err := n.Hold("c", func() {})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	h := n.holds["c"]
	go func() {
		_, _, err := h.dial(t.Context(), containerPort)
		ended <- err
	}()
	release()
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
	if err := wait.For(t, "the end of a connection to a container that is removed", ended); !errors.Is(err, errNoPort) {
		t.Errorf("a connection to a container that is removed: %v", err)
	}
}

// TestDialOfDetached: an attempt to connect to a container that does not answer ends when the
// container is detached. Another one may have its address before the attempt would time out.
func TestDialOfDetached(t *testing.T) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(socket) })
	loopback := netip.MustParseAddr("127.0.0.1")
	err = errors.Join(unix.Bind(socket, &unix.SockaddrInet4{Addr: loopback.As4()}), unix.Listen(socket, 0))
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	a := newAttached(Attachment{Container: "c", Address: loopback})
	connected, ended := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		for { // until the socket, which accepts none, takes no more
			conn, err := a.dial(t.Context(), name.(*unix.SockaddrInet4).Port)
			if err != nil {
				ended <- err
				return
			}
			defer func() { _ = conn.Close() }()
			connected <- struct{}{}
		}
	}()
	wait.For(t, "a connection", connected)
	close(a.gone)
	if err := wait.For(t, "the end of the attempt", ended); err == nil {
		t.Error("a connection to a container that is detached")
	}
}

// TestReleaseBeforeAttached: nothing listens at the port any more of a container whose connections
// are released while it is being attached, and the port counts as one of a container meanwhile.
func TestReleaseBeforeAttached(t *testing.T) {
	n := openNetwork(t, options(t, "hold5"))
	c := startContainer(t, n, "c", netip.Addr{})
	port := c.Ports[containerPort]
	c.stop()
	if err := n.DetachKeeping("c"); err != nil {
		t.Fatal(err)
	}
	release, err := n.Hold("c", func() {})
	if err != nil {
		t.Fatal(err)
	}
	a := newAttached(Attachment{Container: "c"})
	n.takeKept(a)
	if a.Ports[containerPort] != port {
		t.Errorf("the ports of a container that is attached again are %v, want that at %d", a.Ports, port)
	}
	if !n.Sandboxed(netip.MustParseAddrPort(at("127.0.0.1", port)), true) {
		t.Error("the port of a container that is being attached counts as the host's")
	}
	if a.namespace, err = n.takeNamespace(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.Address = a.namespace.address
	release()
	if _, err := n.admit(a); err != nil {
		t.Fatal(err)
	}
	if err := n.DetachKeeping("c"); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, port)
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
}

// TestReleaseThenDetached: the port of a container that is detached shortly after its connections
// were released takes no connection, which would wait for a start that it does not cause.
func TestReleaseThenDetached(t *testing.T) {
	n := openNetwork(t, options(t, "hold6"))
	c := startContainer(t, n, "c", netip.Addr{})
	release, err := n.Hold("c", func() {})
	if err != nil {
		t.Fatal(err)
	}
	release()
	c.stop()
	if err := n.DetachKeeping("c"); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, c.Ports[containerPort])
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
}

// TestAttachAgainFails: a container that cannot be attached again keeps its port, and what waits
// there.
func TestAttachAgainFails(t *testing.T) {
	n := openNetwork(t, options(t, "hold7"))
	c := startContainer(t, n, "c", netip.Addr{})
	local := at("127.0.0.1", c.Ports[containerPort])
	c.stop()
	if err := n.DetachKeeping("c"); err != nil {
		t.Fatal(err)
	}
	notified := make(chan struct{}, 1)
	release, err := n.Hold("c", func() { notified <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	got := askLater("", local)
	wait.For(t, "a connection", notified)
	if _, err := n.Attach(t.Context(), "c", []int{containerPort, 1 << 16}, netip.Addr{}); !errors.Is(err, engine.ErrNetwork) {
		t.Errorf("attach with a port that there is not: %v", err)
	}
	if _, err := unix.Getsockname(n.kept["c"].reserved[containerPort]); err != nil {
		t.Errorf("the socket that reserves the port: %v", err)
	}
	again := startContainer(t, n, "c", netip.Addr{})
	if answer := wait.For(t, "an answer", got); answer != "c "+again.gateway.String() {
		t.Errorf("a connection that has waited is answered %q", answer)
	}
	if again.Ports[containerPort] != c.Ports[containerPort] {
		t.Errorf("published at %d, before at %d", again.Ports[containerPort], c.Ports[containerPort])
	}
}

// TestReleaseWithoutRules: while the table cannot be changed, connections are passed on. The table
// has the ports again once it can be.
func TestReleaseWithoutRules(t *testing.T) {
	n := openNetwork(t, options(t, "hold8"))
	c := startContainer(t, n, "c", netip.Addr{})
	local, want := at("127.0.0.1", c.Ports[containerPort]), "c "+c.gateway.String()
	release, err := n.Hold("c", func() {})
	if err != nil {
		t.Fatal(err)
	}
	setTable := func(table *nftables.Table) (before *nftables.Table) {
		n.mu.Lock()
		defer n.mu.Unlock()
		before, n.filter.table = n.filter.table, table
		return before
	}
	table := setTable(&nftables.Table{Name: strings.Repeat("x", 300), Family: nftables.TableFamilyINet}) // too long
	release()
	wantAnswer(t, "", local, want)
	setTable(table)
	wait.Until(t, "the table has the port again", func() bool { return elements(t, n, portsMap) == 1 })
	wantAnswer(t, "", local, want)
}

// TestKeptByOthers: a port is not kept that another network publishes by now, whose service does
// not run.
func TestKeptByOthers(t *testing.T) {
	o := options(t, "hold9")
	o.Subnet = netip.MustParsePrefix("10.82.0.0/16")
	other := openNetwork(t, o)
	c := startContainer(t, other, "other", netip.Addr{})
	port := c.Ports[containerPort]
	other.Close() // its container runs on
	own := options(t, "hold10")
	own.Kept = []Attachment{{Container: "c", Ports: map[int]int{containerPort: port}}}
	n := openNetwork(t, own)
	if _, err := n.Hold("c", func() {}); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("connections to a port wait that another network publishes: %v", err)
	}
	other = openNetwork(t, o, c.Attachment)
	wantAnswer(t, "", at("127.0.0.1", port), "other "+other.bridge.gateway.String())
	if err := other.Detach("other"); err != nil {
		t.Fatal(err)
	}
	listenOnHost(t, port)
}

// TestBindAgain: a port with connections that an earlier process has accepted is reserved for one
// alone.
func TestBindAgain(t *testing.T) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	client, err := net.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), accepted.Close() })
	_ = listener.Close()
	for _, left := range []string{"a connection", "nothing"} {
		socket, err := bindAgain(netip.Addr{}, port)
		if err != nil {
			t.Fatalf("with %s of an earlier process: %v", left, err)
		}
		if other, err := bindAgain(netip.Addr{}, port); err == nil {
			t.Errorf("with %s of an earlier process, two have its port: %v", left, unix.Close(other))
		}
		if err := unix.Close(socket); err != nil {
			t.Fatal(err)
		}
		_ = client.SetLinger(0)
		_, _ = client.Close(), accepted.Close()
	}
}
