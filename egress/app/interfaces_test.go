package app

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestInterfacesAreLookedAtOnceASecond(t *testing.T) {
	first, second := netip.MustParseAddr("172.17.0.2"), netip.MustParseAddr("10.1.2.3")
	now := time.Now()
	var looks int
	var failure error
	there := []net.Addr{&net.IPNet{IP: net.ParseIP("127.0.0.1"), Mask: net.CIDRMask(8, 32)}, &net.IPNet{IP: first.AsSlice()}}
	i := newInterfaces(func() time.Time { return now })
	i.list = func() ([]net.Addr, error) { looks++; return there, failure }

	// An IPv4 address in 16 bytes is the same.
	if own := i.own(); !own(first) || !own(netip.MustParseAddr("127.0.0.1")) || own(second) {
		t.Error("own addresses are not distinguished from others")
	}
	there = append(there, &net.IPNet{IP: second.AsSlice()})
	now = now.Add(interfacesAge - 1)
	if before := i.own(); before(second) || looks != 1 {
		t.Errorf("looked %d times within a second", looks)
	}
	now = now.Add(1)
	if !i.own()(second) || looks != 2 {
		t.Errorf("an address that came later is not own after a second; looked %d times", looks)
	}
	// An unknown address counts as own, and the next look asks again.
	now = now.Add(interfacesAge)
	failure = errors.New("the kernel says no")
	if !i.own()(netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address passes for another's while the interfaces are not known")
	}
	failure = nil
	if i.own()(netip.MustParseAddr("192.0.2.1")) || looks != 4 {
		t.Errorf("after a failure: looked %d times", looks)
	}
}
