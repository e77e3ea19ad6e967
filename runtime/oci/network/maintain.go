package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// fillReady makes namespaces ahead until ctx ends. Beside the start of a container that would make
// it slower, so while half of them are left it waits until no more are asked for.
func (n *Network) fillReady(ctx context.Context) {
	const (
		pause = time.Second           // after a failure
		calm  = 50 * time.Millisecond // the start of a container
	)
	failed := ""
	var calmAt time.Time
	for {
		select { // one was taken while another was made
		case <-n.wake:
			calmAt = time.Now().Add(calm)
		default:
		}
		var again <-chan time.Time
		switch rest := time.Until(calmAt); {
		case len(n.ready) == cap(n.ready):
		case 2*len(n.ready) >= cap(n.ready) && rest > 0:
			again = time.After(rest)
		default:
			ns, err := n.makeNamespace()
			switch {
			case err == nil:
				failed = ""
				n.ready <- ns // this goroutine alone sends: there is room
				if ctx.Err() == nil {
					continue
				}
			case err.Error() != failed:
				failed = err.Error()
				n.log.Error().Err(err).Msg("cannot prepare a network namespace; retrying")
				fallthrough
			default:
				again = time.After(pause)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			calmAt = time.Now().Add(calm)
		case <-again:
		}
	}
}

// wakeFiller wakes fillReady: a namespace was taken.
func (n *Network) wakeFiller() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// cleanUpDetached removes what detached containers left, until ctx ends. To look through the table
// of connections takes tens of milliseconds, however few there are. So it begins when the removal
// of the container that it follows is over, and takes at most a twentieth of one CPU: containers
// that are detached meanwhile are cleaned up after together. To remove ports is waiting for the
// kernel, and does not count.
func (n *Network) cleanUpDetached(ctx context.Context) {
	const (
		share = 20
		after = 500 * time.Millisecond
		again = time.Second // while the kernel removes ports
	)
	failed := ""
	var ports []detachedAddress // whose addresses are free once the port is gone
	for {
		var look <-chan time.Time
		if len(ports) > 0 {
			look = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-look:
		case <-n.wakeCleaner:
			select {
			case <-ctx.Done():
				return
			case <-time.After(after):
			}
		}
		begin := time.Now()
		gone, err := n.removeDetachedEntries()
		cleaning := time.Since(begin)
		staying, unfreed := n.freeAddresses(ctx, append(ports, gone...))
		ports, err = staying, errors.Join(err, unfreed)
		switch {
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			n.log.Warn().Err(err).Msg("cannot delete conntrack or neighbour entries of detached containers")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After((share - 1) * cleaning):
		}
	}
}

// noteDetached notes an address whose container is gone. mu is held.
func (n *Network) noteDetached(address netip.Addr) {
	n.detached = append(n.detached, detachedAddress{address, time.Now()})
	select {
	case n.wakeCleaner <- struct{}{}:
	default:
	}
}

// removeDetachedEntries removes the neighbour entries and connections of detached containers, and
// returns their addresses.
func (n *Network) removeDetachedEntries() ([]detachedAddress, error) {
	n.mu.Lock()
	gone := n.detached
	n.detached = nil
	n.mu.Unlock()
	if len(gone) == 0 {
		return nil, nil
	}
	addresses := map[netip.Addr]bool{}
	for _, d := range gone {
		addresses[d.address] = true
	}
	if err := forgetFlows(func(a netip.Addr) bool { return addresses[a] }); err != nil {
		// No other container gets the addresses meanwhile.
		n.mu.Lock()
		defer n.mu.Unlock()
		n.detached = append(gone, n.detached...)
		select {
		case n.wakeCleaner <- struct{}{}:
		default:
		}
		return nil, err
	}
	var all []error
	for _, d := range gone {
		all = append(all, n.bridge.forgetNeighbour(d.address))
	}
	return gone, errors.Join(all...)
}

// freeAddresses begins the quarantine of the addresses whose ports are gone, and returns the
// others. The kernel removes a port with its namespace, many at a time; but it keeps a namespace
// for as long as it sends again what a closed connection has left, which may be minutes. Such a
// port is removed here. When ctx ends the rest stays.
func (n *Network) freeAddresses(ctx context.Context, ended []detachedAddress) (staying []detachedAddress, err error) {
	const patience = 3 * time.Second
	var all []error
	for i, d := range ended {
		if ctx.Err() != nil {
			return append(staying, ended[i:]...), errors.Join(all...)
		}
		link, err := n.bridge.port(d.address)
		if link != nil && time.Since(d.at) > patience {
			err = removeLink(link)
			link = nil
		}
		if link != nil || err != nil {
			staying = append(staying, d)
			all = append(all, err)
			continue
		}
		all = append(all, n.addresses.free(d.address, d.at))
	}
	return staying, errors.Join(all...)
}

// rewrite replaces the table by one with what is attached. mu is held, or n is not shared yet.
func (n *Network) rewrite() error {
	all := make([]Attachment, 0, len(n.attached))
	for _, a := range n.attached {
		all = append(all, a.inTable())
	}
	write := func() error { return n.filter.write(all, n.resolver.permitted, n.uplinks) }
	err := write()
	if n.filter.counts && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)) {
		unable := err
		n.filter.counts = false
		if err = write(); err == nil {
			n.log.Warn().Err(unable).Msg("the kernel does not count connections (nft_connlimit): " +
				"a container can use up the host's table of connections")
		} else {
			n.filter.counts = true
		}
	}
	n.tableError = ""
	if err != nil {
		n.tableError = fmt.Sprintf("the nftables table %s cannot be written: %v", n.filter.name, err)
	}
	return err
}
