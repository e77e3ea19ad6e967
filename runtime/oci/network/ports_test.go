package network

import (
	"fmt"
	"net/netip"
	"testing"

	"sandbox.internal/test/wait"
)

// TestPortsOfOthersAreFollowed: what another network begins to publish is known although the list
// was read before.
func TestPortsOfOthersAreFollowed(t *testing.T) {
	n := openNetwork(t, options(t, "reader0"))
	o := options(t, "writer0")
	o.Subnet = netip.MustParsePrefix("10.81.0.0/16")
	other := openNetwork(t, o)
	publishes := func(port int) bool {
		published, err := n.others.get()
		if err != nil {
			t.Fatal(err)
		}
		return published.have(netip.Addr{}, port)
	}
	for i := range 3 {
		name := fmt.Sprint("c", i)
		ns, err := other.Attach(t.Context(), name, []int{containerPort}, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		port := ns.Ports[containerPort]
		wait.Until(t, "a port that is published is known", func() bool { return publishes(port) })
		if err := other.Detach(name); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "a port that is published no more is known to be free", func() bool { return !publishes(port) })
	}
}
