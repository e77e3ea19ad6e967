package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// listenOnHost answers on every address of the host.
func listenOnHost(t *testing.T, port int) {
	t.Helper()
	listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() { answer(listener, "host") })
	t.Cleanup(func() { _ = listener.Close(); done.Wait() })
}

func TestReach(t *testing.T) {
	n := openNetwork(t, options(t, "reach0"))
	a, b := startContainer(t, n, "a", netip.Addr{}), startContainer(t, n, "b", netip.Addr{})
	listenOnHost(t, hostPort)
	if a.Address == b.Address || a.gateway != netip.MustParseAddr("10.77.0.1") || len(a.Nameservers) == 0 {
		t.Errorf("the namespaces are %+v and %+v", a.Namespace, b.Namespace)
	}

	t.Run("outside, with the host's address", func(t *testing.T) {
		wantAnswer(t, a.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
		wantAnswer(t, b.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	})
	t.Run("itself", func(t *testing.T) {
		wantAnswer(t, a.ns, at("127.0.0.1", containerPort), "a 127.0.0.1")
	})
	t.Run("not one another", func(t *testing.T) {
		wantAnswer(t, "", at(b.Address, containerPort), "b "+a.gateway.String())
		wantSilence(t, a.ns, at(b.Address, containerPort))
		wantSilence(t, a.ns, at(hostAddress, b.Ports[containerPort]))
		wantSilence(t, a.ns, at(a.gateway, b.Ports[containerPort]))
	})
	t.Run("not the host", func(t *testing.T) {
		for _, address := range []string{hostAddress, a.gateway.String()} {
			wantAnswer(t, "", at(address, hostPort), "host "+address)
			wantSilence(t, a.ns, at(address, hostPort))
		}
	})
	t.Run("not what others publish on the host", func(t *testing.T) {
		const port = 9001
		rule := fmt.Sprintf("PREROUTING -p tcp -d %s --dport %d -j DNAT --to %s:%d", hostAddress, port, outsideAddress, outsidePort)
		iptables(t, "iptables -t nat -A "+rule)
		defer iptables(t, "iptables -t nat -D "+rule)
		wantSilence(t, a.ns, at(hostAddress, port))
	})
	t.Run("not the host's loopback", func(t *testing.T) {
		// A container with CAP_NET_ADMIN can route 127.0.0.0/8 to the bridge.
		err := in(b.ns, func() error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			_, err = setSysctl("ipv4/conf/eth0/route_localnet", "1")
			lo, missing := netlink.LinkByName("lo")
			return errors.Join(err, missing, netlink.AddrDel(lo, ownLoopback), netlink.RouteAdd(&netlink.Route{
				LinkIndex: eth.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("127.0.0.0/8")),
				Gw: b.gateway.AsSlice(), Src: b.Address.AsSlice()}))
		})
		if err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, "", at("127.0.0.1", hostPort), "host 127.0.0.1")
		wantSilence(t, b.ns, at("127.0.0.1", hostPort))
	})
	t.Run("not from outside without a port", func(t *testing.T) {
		err := in(outside, func() error {
			return netlink.RouteAdd(&netlink.Route{Dst: ipNet(n.bridge.prefix), Gw: net.ParseIP(hostAddress)})
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in(outside, func() error { return netlink.RouteDel(&netlink.Route{Dst: ipNet(n.bridge.prefix)}) })
		}()
		wantSilence(t, outside, at(a.Address, containerPort))
	})
	t.Run("without IPv6", func(t *testing.T) {
		for _, namespace := range []string{a.ns, b.ns} {
			err := in(namespace, func() error {
				addresses, err := netlink.AddrList(nil, unix.AF_INET6)
				if len(addresses) > 0 {
					err = fmt.Errorf("has %v", addresses)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPublish(t *testing.T) {
	n := openNetwork(t, options(t, "publish0"))
	all := startContainer(t, n, "all", netip.Addr{})
	local := startContainer(t, n, "local", netip.MustParseAddr("127.0.0.1"))
	port, localPort := all.Ports[containerPort], local.Ports[containerPort]

	wantAnswer(t, "", at("127.0.0.1", port), "all "+all.gateway.String())
	wantAnswer(t, "", at(hostAddress, port), "all "+hostAddress)
	wantAnswer(t, outside, at(hostAddress, port), "all "+outsideAddress)
	wantAnswer(t, "", at("127.0.0.1", localPort), "local "+local.gateway.String())
	wantSilence(t, outside, at(hostAddress, localPort))
	wantSilence(t, "", at(hostAddress, localPort))

	for _, taken := range []string{fmt.Sprintf(":%d", port), at("127.0.0.1", localPort)} {
		if listener, err := net.Listen("tcp4", taken); err == nil {
			_ = listener.Close()
			t.Errorf("another process can listen on the published port %s", taken)
		}
	}
	if err := n.Detach("all"); err != nil {
		t.Fatal(err)
	}
	if _, err := ask("", at("127.0.0.1", port), wait.Patience()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after Detach the port answers %v, want a refused connection", err)
	}
	if _, err := ask(outside, at(hostAddress, port), wait.Patience()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after Detach the port answers %v to the outside, want a refused connection", err)
	}
	wantSilence(t, all.ns, at(outsideAddress, outsidePort)) // it is cut off, although it runs
	wantAnswer(t, "", at("127.0.0.1", localPort), "local "+local.gateway.String())
	if err := n.Detach("all"); err != nil {
		t.Errorf("the second Detach: %v", err)
	}
}

// ownLoopback is the address of a loopback interface: while it has none, 127.0.0.0/8 can be routed
// elsewhere.
var ownLoopback = &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}

// TestLoopbackFromOutside: a neighbour that routes 127.0.0.1 to the host reaches nothing that is
// published there.
func TestLoopbackFromOutside(t *testing.T) {
	n := openNetwork(t, options(t, "loop0"))
	all := startContainer(t, n, "all", netip.Addr{})
	local := startContainer(t, n, "local", netip.MustParseAddr("127.0.0.1"))
	change := func(own func(netlink.Link, *netlink.Addr) error, routed string, route func(*netlink.Route) error) error {
		return in(outside, func() error {
			lo, err := netlink.LinkByName("lo")
			down, missing := netlink.LinkByName("down0")
			if err := errors.Join(err, missing); err != nil {
				return err
			}
			_, err = setSysctl("ipv4/conf/down0/route_localnet", routed)
			return errors.Join(err, own(lo, ownLoopback), route(&netlink.Route{LinkIndex: down.Attrs().Index,
				Dst: ipNet(netip.MustParsePrefix("127.0.0.0/8")), Gw: net.ParseIP(hostAddress), Src: net.ParseIP(outsideAddress)}))
		})
	}
	t.Cleanup(func() {
		if err := change(netlink.AddrAdd, "0", netlink.RouteDel); err != nil {
			t.Error(err)
		}
	})
	if err := change(netlink.AddrDel, "1", netlink.RouteAdd); err != nil {
		t.Fatal(err)
	}
	for _, c := range []container{all, local} {
		wantAnswer(t, "", at("127.0.0.1", c.Ports[containerPort]), c.Container+" "+c.gateway.String())
		wantSilence(t, outside, at("127.0.0.1", c.Ports[containerPort]))
	}
	wantAnswer(t, outside, at(hostAddress, all.Ports[containerPort]), "all "+outsideAddress)
}

func TestAttachRefuses(t *testing.T) {
	n := openNetwork(t, options(t, "refuse0"))
	startContainer(t, n, "there", netip.Addr{})
	for name, c := range map[string]struct {
		container string
		ports     []int
		publish   string
		want      string
	}{
		"no container":     {"", nil, "", "container"},
		"attached already": {"there", nil, "", "there"},
		"no such port":     {"x", []int{70000}, "", "ports: 70000"},
		"foreign address":  {"x", []int{80}, "192.0.2.1", "192.0.2.1"},
		"IPv6":             {"x", []int{80}, "::1", "publish: ::1"},
	} {
		t.Run(name, func(t *testing.T) {
			var publish netip.Addr
			if c.publish != "" {
				publish = netip.MustParseAddr(c.publish)
			}
			_, err := n.Attach(t.Context(), c.container, c.ports, publish)
			if !errors.Is(err, engine.ErrNetwork) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Attach: %v; want a network error about %q", err, c.want)
			}
		})
	}
}

// TestJournal reads what a killed process left.
func TestJournal(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	o := Options{Directory: t.TempDir(), Quarantine: time.Minute}
	prefix := netip.MustParsePrefix("10.79.0.0/28")
	journal := "used 10.79.0.2 999000\nfree 10.79.0.2 999001\n" + // long ago
		"used 10.79.0.3 999000\nfree 10.79.0.3 999990\n" + // lately
		"used 10.79.0.4 999000\n" + // until the process was killed
		"used 10.79.0.5 999000\n" + // still
		"free 10.79.0.6 2000000\n" + // the clock was set back
		"free 192.0.2.1 999999\nnonsense\nfree 10.79.0."
	if err := os.WriteFile(filepath.Join(o.Directory, "addresses"), []byte(journal), 0o600); err != nil {
		t.Fatal(err)
	}
	running := []Attachment{{Container: "c", Address: netip.MustParseAddr("10.79.0.5")}}
	a, err := openAddresses(o, prefix, running, now)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	for address, want := range map[string]bool{"10.79.0.2": false, "10.79.0.3": true, "10.79.0.4": true, "10.79.0.6": true} {
		if _, got := a.freed[netip.MustParseAddr(address)]; got != want {
			t.Errorf("%s is in quarantine: %v, want %v", address, got, want)
		}
	}
	if !a.taken[netip.MustParseAddr("10.79.0.5")] || len(a.taken) != 1 {
		t.Errorf("taken are %v", a.taken)
	}
	// However often addresses are used, the journal is bounded.
	for range 3 * maxJournal {
		address, err := a.take()
		if err == nil {
			err = errors.Join(a.use(address, now), a.free(address, now.Add(-time.Hour)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(o.Directory, "addresses"))
	if err != nil || info.Size() > 2*maxJournal*30 {
		t.Errorf("the journal: %v, %v", info, err)
	}
}

// TestMany: 200 containers come and go, and leave nothing.
func TestMany(t *testing.T) {
	o := options(t, "many0")
	o.Ready = 8
	n := openNetwork(t, o)
	if _, err := n.Attach(t.Context(), "first", []int{80}, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach("first"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "namespaces are made ahead", func() bool { return len(n.ready) == o.Ready })
	before := openFiles(t)
	const workers, each = 4, 50
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				name := fmt.Sprintf("c%d.%d", w, i)
				_, err := n.Attach(t.Context(), name, []int{80, 443}, netip.Addr{})
				if err == nil && i%2 == 0 {
					n.Started(name)
				}
				if err = errors.Join(err, n.Detach(name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for _, set := range []string{membersSet, portsMap, boundMap} {
		if left := elements(t, n, set); left != 0 {
			t.Errorf("%d elements of %s are left", left, set)
		}
	}
	wait.Until(t, "only what is made ahead is left", func() bool {
		return len(ports(t, n)) == o.Ready && len(neighbours(t, n)) == o.Ready && len(n.ready) == o.Ready
	})
	wait.Until(t, "no more descriptors are open than before", func() bool { return openFiles(t) <= before })
}

func neighbours(t *testing.T, n *Network) []netlink.Neigh {
	t.Helper()
	all, err := list(func() ([]netlink.Neigh, error) { return netlink.NeighList(n.bridge.index, unix.AF_INET) })
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(e netlink.Neigh) bool { return e.State != netlink.NUD_PERMANENT })
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// TestFirstThread: the thread that /proc/PID is about stays in its namespace.
func TestFirstThread(t *testing.T) {
	o := options(t, "thread0")
	before := namespaceID(t, "/proc/self/ns/net")
	n := openNetwork(t, o)
	for i := range 20 {
		name := fmt.Sprint("c", i)
		if _, err := n.Attach(t.Context(), name, nil, netip.Addr{}); err != nil {
			t.Fatal(err)
		}
	}
	if after := namespaceID(t, "/proc/self/ns/net"); after != before {
		t.Error("the process is in another namespace")
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		path := "/proc/self/task/" + thread.Name() + "/ns/net"
		wait.Until(t, "threads in other namespaces end", func() bool {
			var stat syscall.Stat_t
			return syscall.Stat(path, &stat) != nil || stat.Ino == before
		})
	}
}

func namespaceID(t *testing.T, path string) uint64 {
	t.Helper()
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

// TestPortsOfAnotherService: a service that was killed has no sockets at the ports that its
// containers are published on, and no other network takes them.
func TestPortsOfAnotherService(t *testing.T) {
	killed, other := openNetwork(t, options(t, "killed0")), options(t, "other0")
	first, err := killed.Attach(t.Context(), "first", []int{containerPort}, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := killed.Attach(t.Context(), "second", []int{containerPort}, netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	killed.mu.Lock()
	for _, a := range killed.attached {
		for _, socket := range a.reserved {
			_ = unix.Close(socket)
		}
		a.reserved = nil
	}
	killed.mu.Unlock()
	others, err := publishedByOthers(other.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []int{first.Ports[containerPort], second.Ports[containerPort]} {
		for _, address := range []netip.Addr{{}, netip.MustParseAddr("127.0.0.1")} {
			if socket, port, err := bindFree(address, others, span{taken, taken}); err == nil {
				_ = unix.Close(socket)
				t.Errorf("port %d is given on %v, and is published already", port, address)
			}
		}
	}
	if socket, _, err := bindFree(netip.Addr{}, others, hostPorts()); err != nil {
		t.Errorf("no other port can be had: %v", err)
	} else {
		_ = unix.Close(socket)
	}
	if own, err := publishedByOthers(killed.bridge.name); err != nil || len(own) != 0 {
		t.Errorf("the network's own ports count as those of others: %v, %v", own, err)
	}
}
