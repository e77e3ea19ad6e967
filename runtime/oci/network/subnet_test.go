package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

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
		"no directory":     {func(o *Options) { o.Directory = "" }, "directory"},
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
