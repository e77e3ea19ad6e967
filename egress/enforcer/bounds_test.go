package enforcer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestNamesOfAddressesAreBoundedInBytes: the owner of a zone gives each of its addresses as many
// long names as it likes.
func TestNamesOfAddressesAreBoundedInBytes(t *testing.T) {
	b, now := newAddressTable(), time.Unix(1_000_000, 0)
	label := strings.Repeat("x", 60)
	for i := range maxKnown {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		for n := range maxNames {
			name := fmt.Sprintf("n%d-%d.%s.%s.%s.test", i, n, label, label, label)
			b.add(addr, newLearnedName(name, []string{"a." + name}))
			b.extend(addr, now.Add(time.Duration(i)*time.Second), true)
			if names := b.names(addr); names[len(names)-1].name != name {
				t.Fatalf("the latest name of %s is not remembered: %q", addr, names)
			}
		}
	}
	total := 0
	for _, e := range b.entries {
		for _, name := range e.names {
			total += name.size()
		}
	}
	if total != b.bytes || total > maxNameBytes+maxNames*2*254 {
		t.Errorf("names of %d bytes are remembered, %d counted, at most %d wanted", total, b.bytes, maxNameBytes)
	}
	for addr := range b.entries {
		b.forget(addr)
	}
	if b.bytes != 0 {
		t.Errorf("%d bytes are left of nothing", b.bytes)
	}
}
