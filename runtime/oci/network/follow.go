package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// collectTime is how long changes of the host's rules are collected before they are looked at.
const collectTime = 50 * time.Millisecond

// follow keeps the table, the accept rules and the uplinks as they must be when other programs
// change rules and routes: a reload of a firewall removes all tables, dockerd makes its chains
// again.
func (n *Network) follow(ctx context.Context) error {
	rules, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("follow changes of rules: %w", err)
	}
	routes, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE)
	if err != nil {
		_ = rules.Close()
		return fmt.Errorf("follow changes of routes: %w", err)
	}
	n.restore()
	n.running.Go(func() { n.listen(ctx, rules, n.concernsRules) })
	n.running.Go(func() { n.listen(ctx, routes, func(netlink.Message) bool { return true }) })
	n.running.Go(func() {
		defer func() { _, _ = rules.Close(), routes.Close() }()
		for {
			select {
			case <-ctx.Done():
				return
			case <-n.changed:
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(collectTime):
			}
			n.restore()
		}
	})
	return nil
}

func subscribe(family int, group uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(family, nil)
	if err != nil {
		return nil, err
	}
	if err := conn.JoinGroup(group); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// concernsRules reports whether a message is about more than elements of sets, of which every
// container has some. The elements of other tables may be ports that another network publishes.
func (n *Network) concernsRules(message netlink.Message) bool {
	switch message.Header.Type & 0xff {
	case unix.NFT_MSG_NEWGEN:
		return false
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		attributes := message.Data[min(nl.SizeofNfgenmsg, len(message.Data)):]
		if cString(attribute(attributes, unix.NFTA_SET_ELEM_LIST_TABLE)) != n.filter.name {
			n.others.forget(false)
		}
		return false
	}
	n.others.forget(false)
	return true
}

// listen reports changes until the connection is closed, which happens after ctx has ended.
func (n *Network) listen(ctx context.Context, conn *netlink.Conn, concerns func(netlink.Message) bool) {
	for {
		messages, err := conn.Receive()
		lost := errors.Is(err, unix.ENOBUFS) // some messages did not fit
		if err != nil && !lost {
			if ctx.Err() == nil {
				n.others.forget(true)
				n.log.Error().Err(err).Msg("changes of the host's rules are no longer followed")
			}
			return
		}
		if lost {
			n.others.forget(false)
		}
		concerned := lost
		for _, message := range messages { // each of them, for what concerns does besides
			concerned = concerns(message) || concerned
		}
		if concerned {
			select {
			case n.changed <- struct{}{}:
			default:
			}
		}
	}
}

// restore mends what is not as it must be, and logs when the answer of Problem changes.
func (n *Network) restore() {
	n.repair()
	problem := n.Problem()
	n.mu.Lock()
	defer n.mu.Unlock()
	if problem == n.reported {
		return
	}
	n.reported = problem
	if problem == "" {
		n.log.Info().Msg("containers reach the network again")
		return
	}
	n.log.Error().Msg(problem)
}

// repair restores what another program has removed from the tables of the kernel.
func (n *Network) repair() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	uplinks, err := bridgeUplinks(n.bridge.name)
	if err != nil {
		n.log.Warn().Err(err).Msg("cannot list the uplinks")
		uplinks = n.uplinks
	}
	same := slices.Equal(uplinks, n.uplinks)
	n.uplinks = uplinks
	if n.resolver.read() || !same || !n.filter.complete() {
		if n.rewrite() != nil {
			return
		}
	}
	n.acceptError = ""
	if err := addAccepts(n.bridge.name); err != nil {
		n.acceptError = fmt.Sprintf("the rules that let containers pass cannot be added to %s: %v",
			dockerChain, err)
	}
}
