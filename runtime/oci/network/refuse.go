package network

import (
	"net/netip"

	"sandbox.internal/runtime/engine/registries"
)

// Sandboxed reports whether what answers at the address may be in a container: its own address, or
// a port of this host that containers are published on. Any port of the range that such ports are
// taken from counts, because other services on this host publish theirs there; where listed is true
// only those count that this Network publishes now.
func (n *Network) Sandboxed(address netip.AddrPort, listed bool) bool {
	if !registries.IsOwn(address.Addr()) {
		return n.bridge.prefix.Contains(address.Addr())
	}
	port, given := int(address.Port()), hostPorts()
	if !listed && given.high < 65535 { // else the kernel's range, which programs of the host have ports of, too
		return given.low <= port && port <= given.high
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, all := range []map[string]*attached{n.attached, n.kept} {
		for _, a := range all {
			for _, published := range a.Ports {
				if published == port {
					return true
				}
			}
		}
	}
	return false
}
