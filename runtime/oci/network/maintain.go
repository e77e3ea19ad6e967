package network

import (
	"context"
	"fmt"
	"time"
)

// maintain makes namespaces ahead and removes what detached containers left, until ctx ends.
func (n *Network) maintain(ctx context.Context) {
	const pause = time.Second // after a failure
	failed := ""
	for {
		n.clean()
		var again <-chan time.Time
		if len(n.ready) < cap(n.ready) {
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
				n.log.Error().Err(err).Msg("no network namespace could be made ahead")
				fallthrough
			default:
				again = time.After(pause)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-again:
		}
	}
}

// notify wakes maintain.
func (n *Network) notify() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// clean removes the neighbour entries of detached containers, and begins their addresses' quarantine.
func (n *Network) clean() {
	n.mu.Lock()
	gone := n.gone
	n.gone = nil
	n.mu.Unlock()
	for _, d := range gone {
		if err := n.bridge.forgetNeighbour(d.address); err != nil {
			n.log.Warn().Err(err).Stringer("address", d.address).Msg("a neighbour entry stays")
		}
		if err := n.addresses.free(d.address, d.at); err != nil {
			n.log.Warn().Err(err).Msg("the quarantine of addresses could not be recorded")
		}
	}
}

// rewrite replaces the table by one with what is attached. mu is held, or n is not shared yet.
func (n *Network) rewrite() error {
	all := make([]Attachment, 0, len(n.attached))
	for _, a := range n.attached {
		all = append(all, a.Attachment)
	}
	err := n.filter.write(all, n.resolver.permitted, n.uplinks)
	n.problem = ""
	if err != nil {
		n.problem = fmt.Sprintf("the nftables table %s could not be written: %v", n.filter.name, err)
	}
	return err
}
