package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/flock"
)

// lockBridge makes sure that one process at a time has the bridge of this name in this network
// namespace. The directory is for root alone: an abstract socket, which belongs to the namespace as
// the bridge does, could be bound by every process there first.
func lockBridge(directory, bridge string) (*os.File, error) {
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &namespace); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: "/proc/self/ns/net", Err: err}
	}
	if err := os.MkdirAll(directory, 0o711); err != nil {
		return nil, err
	}
	path := filepath.Join(directory, fmt.Sprintf("bridge-%s-%d", bridge, namespace.Ino))
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err = flock.Exclusive(file); errors.Is(err, flock.ErrHeld) {
			err = errors.New("another service uses the bridge")
		}
		if err != nil {
			_ = file.Close()
			return nil, err
		}
		locked, err := file.Stat()
		if err != nil {
			_ = file.Close()
			return nil, err
		}
		if there, err := os.Lstat(path); err == nil && os.SameFile(there, locked) {
			return file, nil
		}
		_ = file.Close() // its holder has removed it
	}
}

// unlockBridge ends that. The file is removed with the bridge.
func unlockBridge(lock *os.File, removed bool) error {
	var err error
	if removed {
		err = os.Remove(lock.Name())
	}
	return errors.Join(err, lock.Close())
}

// candidates are the ranges for a subnet that is not configured: private (RFC 1918), and not among
// those that Docker, Podman and common routers take first.
func candidates() []netip.Prefix {
	var all []netip.Prefix
	for second := byte(201); second < 232; second++ {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, 0, 0}), 16))
	}
	return append(all, netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("172.29.0.0/16"),
		netip.MustParsePrefix("192.168.224.0/20"), netip.MustParsePrefix("192.168.208.0/20"))
}

// routesBeside are the host's routes of every table but those through the link, if it is not nil,
// and but default routes.
func routesBeside(link netlink.Link) ([]netlink.Route, error) {
	routes, err := list(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool {
		prefix, ok := toPrefix(r.Dst)
		return !ok || prefix.Bits() == 0 || link != nil && r.LinkIndex == link.Attrs().Index
	}), nil
}

// freeSubnet returns a range that none of the routes overlaps, and that has none of the name
// servers.
func freeSubnet(bridge string, routes []netlink.Route, servers []netip.Addr) (netip.Prefix, error) {
	for _, candidate := range candidates() {
		taken := slices.ContainsFunc(servers, candidate.Contains) ||
			slices.ContainsFunc(routes, func(r netlink.Route) bool {
				prefix, _ := toPrefix(r.Dst)
				return prefix.Overlaps(candidate)
			})
		if !taken {
			return candidate, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("the host has routes to every range that bridge %s could take: "+
		"configure its subnet", bridge)
}

// divertedBy returns the first of the routes that the host would follow for some of the subnet's
// addresses, or may, instead of the bridge's: to the subnet or to a part of it. "" if there is
// none.
func divertedBy(routes []netlink.Route, subnet netip.Prefix) string {
	for _, route := range routes {
		prefix, _ := toPrefix(route.Dst)
		if prefix.Bits() >= subnet.Bits() && subnet.Contains(prefix.Addr()) {
			if link, err := netlink.LinkByIndex(route.LinkIndex); err == nil {
				return fmt.Sprintf("%v through %s", prefix, link.Attrs().Name)
			}
			return prefix.String()
		}
	}
	return ""
}

// gatewayRoutes are the host's routes by way of a gateway.
func gatewayRoutes() ([]netlink.Route, error) {
	routes, err := list(func() ([]netlink.Route, error) {
		return netlink.RouteList(nil, unix.AF_INET)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Gw == nil && r.MultiPath == nil }), nil
}

// uplinkMTU is the least MTU of the interfaces that the host reaches the outside through, at most
// 1500.
func uplinkMTU() (int, error) {
	const ethernet, least = 1500, 576
	mtu := ethernet
	routes, err := gatewayRoutes()
	if err != nil {
		return 0, err
	}
	for _, route := range routes {
		link, err := netlink.LinkByIndex(route.LinkIndex)
		if err == nil && link.Attrs().MTU >= least {
			mtu = min(mtu, link.Attrs().MTU)
		}
	}
	return mtu, nil
}

// bridgeUplinks returns the names of the interfaces through which the host has a route by way of a
// gateway, sorted. Sandboxes may send through these even when they are bridges.
func bridgeUplinks(bridge string) ([]string, error) {
	routes, err := gatewayRoutes()
	if err != nil {
		return nil, err
	}
	var names []string
	add := func(index int) {
		if link, err := netlink.LinkByIndex(index); err == nil && link.Attrs().Name != bridge {
			names = append(names, link.Attrs().Name)
		}
	}
	for _, route := range routes {
		if route.LinkIndex != 0 {
			add(route.LinkIndex)
		}
		for _, hop := range route.MultiPath {
			add(hop.LinkIndex)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// setSysctls sets the kernel parameters of the bridge, and switches on forwarding.
func setSysctls(bridge string, log zerolog.Logger) error {
	changed, err := setSysctl("ipv4/ip_forward", "1")
	if err != nil {
		return fmt.Errorf("switch on forwarding, without which containers reach nothing: %w", err)
	}
	if changed {
		log.Warn().Msg("net.ipv4.ip_forward is now 1: this host forwards packets between its interfaces")
	}
	for _, parameter := range []struct{ name, value string }{
		{"ipv4/conf/" + bridge + "/forwarding", "1"},
		// Ports are published on 127.0.0.1 too: packets of the loopback are routed to the bridge.
		// The table drops what containers send to it.
		{"ipv4/conf/" + bridge + "/route_localnet", "1"},
		{"ipv4/conf/" + bridge + "/rp_filter", "1"},
		{"ipv4/conf/" + bridge + "/accept_redirects", "0"},
		{"ipv4/conf/" + bridge + "/send_redirects", "0"},
		{"ipv6/conf/" + bridge + "/disable_ipv6", "1"},
	} {
		_, err := setSysctl(parameter.name, parameter.value)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(parameter.name, "ipv6/") {
			continue // a host without IPv6
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setSysctl sets a parameter below net that has another value.
func setSysctl(name, value string) (changed bool, err error) {
	has, err := readSysctl(name)
	if err != nil || has == value {
		return false, err
	}
	return true, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}

func readSysctl(name string) (string, error) {
	value, err := os.ReadFile("/proc/sys/net/" + name)
	return strings.TrimSpace(string(value)), err
}
