package app

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// interfacesAge is how long the addresses of the interfaces are believed. Interfaces may come
// later, so they are looked at again; not for every answer, because the system calls of thousands
// of them in a second keep dozens of threads busy, and the runtime gives none back.
const interfacesAge = time.Second

// interfaces holds the addresses of this network namespace, as they were at most interfacesAge ago.
// It is safe for concurrent use.
type interfaces struct {
	clock func() time.Time
	list  func() ([]net.Addr, error)

	mu        sync.Mutex
	at        time.Time
	addresses []netip.Addr
}

func newInterfaces(clock func() time.Time) *interfaces {
	return &interfaces{clock: clock, list: net.InterfaceAddrs}
}

// own returns a function that reports whether an address is one of this network namespace, for all
// decisions of one moment. It looks when it is asked first.
func (i *interfaces) own() func(netip.Addr) bool {
	now := sync.OnceValues(i.now)
	return func(addr netip.Addr) bool {
		addresses, err := now()
		return err != nil || slices.Contains(addresses, addr) // what is not known is not allowed
	}
}

func (i *interfaces) now() ([]netip.Addr, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.clock()
	if i.addresses != nil && now.Sub(i.at) < interfacesAge {
		return i.addresses, nil
	}
	found, err := i.list()
	if err != nil {
		i.addresses = nil
		return nil, err
	}
	i.addresses, i.at = make([]netip.Addr, 0, len(found)), now
	for _, address := range found {
		if network, ok := address.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(network.IP); ok {
				i.addresses = append(i.addresses, ip.Unmap())
			}
		}
	}
	return i.addresses, nil
}
