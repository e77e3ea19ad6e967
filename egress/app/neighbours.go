package app

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// neighbours returns the IPv4 networks that this network namespace is on, and its gateways. Without
// a gateway the host, which has an address of the network like any neighbour, could not be
// distinguished from them.
func neighbours() (networks []netip.Prefix, gateways []netip.Addr, err error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if gateway, ok := netip.AddrFromSlice(route.Gw.To4()); ok {
			gateways = append(gateways, gateway)
			continue
		}
		if route.Dst == nil {
			continue
		}
		if addr, ok := netip.AddrFromSlice(route.Dst.IP.To4()); ok {
			bits, _ := route.Dst.Mask.Size()
			networks = append(networks, netip.PrefixFrom(addr, bits))
		}
	}
	if len(gateways) == 0 {
		return nil, nil, fmt.Errorf("--refuse-neighbours: no route has a gateway, so the host cannot be distinguished from neighbours")
	}
	return networks, gateways, nil
}
