package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// TestLockOfBridge: no process that may only be in the network keeps the bridge from a service.
func TestLockOfBridge(t *testing.T) {
	o := options(t, "lock0")
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.Bind(socket, &unix.SockaddrUnix{Name: "@sandbox.internal/network/" + o.Bridge}); err != nil {
		t.Fatal(err)
	}
	n := openNetwork(t, o)
	info, err := n.lock.Stat()
	if err != nil || info.Mode() != 0o600 || filepath.Dir(n.lock.Name()) != o.Shared {
		t.Errorf("the lock is %s, %v, %v", n.lock.Name(), info.Mode(), err)
	}
	closeClean(t, n)
	if left, err := filepath.Glob(filepath.Join(o.Shared, "*"+o.Bridge+"*")); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	// A file that was removed while another process waited for its lock is no lock.
	var opening sync.WaitGroup
	var open atomic.Int32
	for range 4 {
		opening.Go(func() {
			for range 50 {
				lock, err := lockBridge(o.Shared, o.Bridge)
				if err != nil {
					t.Error(err)
					return
				}
				if open.Add(1) != 1 {
					t.Error("two have the lock")
				}
				open.Add(-1)
				if err := unlockBridge(lock, true); err != nil {
					t.Error(err)
				}
			}
		})
	}
	opening.Wait()
}

func TestOpenRefuses(t *testing.T) {
	good := options(t, "bad0")
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no bridge":        {func(o *Options) { o.Bridge = "" }, "bridge"},
		"long name":        {func(o *Options) { o.Bridge = "a234567890123456" }, "bridge"},
		"path as name":     {func(o *Options) { o.Bridge = "../all" }, "bridge"},
		"no folder":        {func(o *Options) { o.Folder = "" }, "folder"},
		"nothing shared":   {func(o *Options) { o.Shared = "" }, "shared"},
		"too many ready":   {func(o *Options) { o.Ready = 5000 }, "ready"},
		"IPv6 subnet":      {func(o *Options) { o.Subnet = netip.MustParsePrefix("fd00::/64") }, "subnet"},
		"tiny subnet":      {func(o *Options) { o.Subnet = netip.MustParsePrefix("10.1.1.0/30") }, "subnet"},
		"other's bridge":   {func(o *Options) { o.Bridge = "foreign0" }, "did not make"},
		"no bridge at all": {func(o *Options) { o.Bridge = "up0" }, "did not make"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want == "did not make" {
				foreign := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "foreign0"}}
				if err := netlink.LinkAdd(foreign); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := netlink.LinkDel(foreign); err != nil {
						t.Errorf("the foreign bridge is gone: %v", err)
					}
				}()
			}
			o := good
			c.change(&o)
			n, err := Open(t.Context(), o, nil)
			if !errors.Is(err, engine.ErrNetwork) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v; want a network error about %q", err, c.want)
			}
			if err == nil {
				n.Close()
			}
		})
	}
	t.Run("another service", func(t *testing.T) {
		openNetwork(t, good)
		if _, err := Open(t.Context(), good, nil); err == nil || !strings.Contains(err.Error(), "another service") {
			t.Errorf("the second Open: %v", err)
		}
	})
}

// TestSubnet takes a range that no route overlaps, and keeps it.
func TestSubnet(t *testing.T) {
	o := options(t, "subnet0")
	o.Subnet = netip.Prefix{}
	taken := ipNet(candidates()[0])
	taken.Mask = net.CIDRMask(24, 32) // a part is enough
	if err := netlink.RouteAdd(&netlink.Route{Dst: taken, Gw: net.ParseIP(outsideAddress)}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.RouteDel(&netlink.Route{Dst: taken, Gw: net.ParseIP(outsideAddress)}) }()
	n := openNetwork(t, o)
	if n.bridge.prefix != candidates()[1] {
		t.Errorf("the subnet is %v, want %v", n.bridge.prefix, candidates()[1])
	}
	c := startContainer(t, n, "c", netip.Addr{})
	n.Close()
	o.Subnet = netip.MustParsePrefix("10.78.0.0/16")
	n = openNetwork(t, o, c.Attachment)
	if n.bridge.prefix != candidates()[1] {
		t.Errorf("with a container the subnet becomes %v", n.bridge.prefix)
	}
	wantAnswer(t, outside, at(hostAddress, c.Ports[containerPort]), "c "+outsideAddress)
	c.stop()
}

// TestDivertedSubnet: a configured range that the host has another route to, or to a part of it, is
// refused. One with running containers is kept.
func TestDivertedSubnet(t *testing.T) {
	o := options(t, "diverted0")
	n := openNetwork(t, o)
	c := startContainer(t, n, "c", netip.Addr{})
	n.Close()
	part := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.77.128.0/24")), Gw: net.ParseIP(outsideAddress)}
	if err := netlink.RouteAdd(part); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.RouteDel(part) }()

	other := options(t, "diverted1")
	for _, subnet := range []string{"10.77.128.0/20", "10.77.0.0/16", "10.76.0.0/15"} {
		other.Subnet = netip.MustParsePrefix(subnet)
		n, err := Open(t.Context(), other, nil)
		if err == nil {
			n.Close()
		}
		want := "subnet: " + subnet + " has addresses that the host has another route to (10.77."
		if !errors.Is(err, engine.ErrNetwork) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), " through ") {
			t.Errorf("Open: %v; want a network error with %q", err, want)
		}
	}
	// A route to more than the subnet is not followed for its addresses.
	other.Subnet = netip.MustParsePrefix("10.77.128.128/25")
	openNetwork(t, other).Close()

	n = openNetwork(t, o, c.Attachment)
	if n.bridge.prefix != o.Subnet {
		t.Errorf("with a container the subnet becomes %v", n.bridge.prefix)
	}
	c.stop()
}

// TestSubnetsAtOnce: services that open at the same time have different ranges.
func TestSubnetsAtOnce(t *testing.T) {
	opened := make([]*Network, 8)
	var opening sync.WaitGroup
	shared := t.TempDir()
	for i := range opened {
		o := options(t, fmt.Sprintf("atonce%d", i))
		o.Subnet, o.Shared = netip.Prefix{}, shared
		opening.Go(func() {
			var err error
			if opened[i], err = Open(t.Context(), o, nil); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	has := map[netip.Prefix]bool{}
	for _, n := range opened {
		if n == nil {
			continue
		}
		if has[n.bridge.prefix] {
			t.Errorf("two services have %v", n.bridge.prefix)
		}
		has[n.bridge.prefix] = true
		closeClean(t, n)
	}
}

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

// TestJournal reads what a killed process left.
func TestJournal(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	o := Options{Folder: t.TempDir(), Quarantine: time.Minute}
	prefix := netip.MustParsePrefix("10.79.0.0/28")
	journal := "used 10.79.0.2 999000\nfree 10.79.0.2 999001\n" + // long ago
		"used 10.79.0.3 999000\nfree 10.79.0.3 999990\n" + // lately
		"used 10.79.0.4 999000\n" + // until the process was killed
		"used 10.79.0.5 999000\n" + // still
		"free 10.79.0.6 2000000\n" + // the clock was set back
		"free 192.0.2.1 999999\nnonsense\nfree 10.79.0."
	if err := os.WriteFile(filepath.Join(o.Folder, "addresses"), []byte(journal), 0o600); err != nil {
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
	info, err := os.Stat(filepath.Join(o.Folder, "addresses"))
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
