// Package network connects containers of the local engine: one bridge, network namespaces made
// ahead, addresses, published ports, and two nftables tables.
//
// A sandbox reaches what the host forwards to, with the host's address. It does not reach other
// sandboxes (their bridge ports are isolated, and the table drops what would be forwarded between
// them), other containers of the host, or the host itself, but for a name server that runs there.
//
// A crash leaves no object that the kernel keeps for ever: a namespace has no mount, it lives as
// long as a descriptor or a process holds it, and its veth pair goes with it. The content of the
// table is rewritten by [Open]. Namespaces have no IPv6, and ports are published for IPv4 only.
//
// No program is run: everything is done over netlink and /proc.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// Options configures a [Network].
type Options struct {
	// Bridge is the name of the bridge and of the nftables tables, at most 15 bytes. A bridge of
	// this name that this package did not make is refused.
	Bridge string
	// Subnet is the range of the containers' addresses, IPv4, /8 to /29; the first address is the
	// bridge's. A range that the host has another route to, or to a part of it, is refused. The
	// zero value takes the first of a list of private ranges that no route of the host overlaps. A
	// bridge with running containers keeps the range that it has.
	Subnet netip.Prefix
	// Shared is a directory of all services of this host, to which root alone may write. They
	// choose their ranges one after the other, and one has the bridge. It is made when missing.
	Shared string
	// Directory is where the addresses that may not be given again yet are kept. It is made when
	// missing.
	Directory string
	// Ready is how many namespaces are made ahead.
	Ready int
	// Quarantine is how long after [Network.Detach] an address is not given again.
	Quarantine time.Duration
	Logger     zerolog.Logger

	// Kept are the published ports of containers that are not attached, and are given to them when
	// they are attached again.
	Kept []Attachment

	flows uint32 // most connections that a container begins; zero derives it from the host's limit

	// For tests of kernels that lack something.
	arpFamily nftables.TableFamily    // zero is ARP
	countOver func(n uint32) expr.Any // nil is Connlimit
}

// Attachment is what a container has of the network.
type Attachment struct {
	Container string
	Address   netip.Addr
	Publish   netip.Addr  // the host's address that ports are published on; zero means all
	Ports     map[int]int // TCP port of the container to the host's
}

// Namespace is a network namespace that is ready for a container.
type Namespace struct {
	Attachment
	Path        string // /proc/PID/fd/N, valid until Started, Detach or Close
	Inode       uint64 // of the namespace, which no other one has while it exists
	Nameservers []string
}

// Network is an open network. It is safe for concurrent use.
type Network struct {
	options Options
	log     zerolog.Logger
	lock    *os.File // of the bridge, see lockBridge
	bridge  bridge
	filter  filter
	ready   chan *namespace
	makers  chan struct{} // bounds how many namespaces are made at once
	stop    context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{} // for fillReady
	changed chan struct{} // for follow: the host's rules or routes may have changed

	wakeCleaner chan struct{}   // for cleanUpDetached
	serving     context.Context //nolint:containedctx // ends when the network is closed

	passed chan struct{} // has an element for each connection of a hold that waits or is passed on

	addresses *addresses
	others    othersPorts

	// mu is held while the table is changed, so that what it has and attached are the same.
	mu          sync.Mutex
	attached    map[string]*attached
	kept        map[string]*attached // the ports of containers that are not attached
	holds       map[string]*hold
	opened      chan struct{} // closed when a container is attached or reopened
	detached    []detachedAddress
	resolver    resolver
	uplinks     []string
	tableError  string // of the last change of the table; "" when it succeeded
	acceptError string // of the last change of the rules that let containers pass; likewise
	reported    string // the last answer of Problem in the log
	closed      bool
}

// detachedAddress is an address whose neighbour entry and connections are to be removed.
type detachedAddress struct {
	address netip.Addr
	at      time.Time
}

// Open sets up the bridge and the table, or takes over those of an earlier process, with the
// containers that run: inUse. Elements, addresses and veth pairs of others are removed. It switches
// on forwarding of IPv4. Errors wrap [engine.ErrNetwork].
func Open(ctx context.Context, o Options, inUse []Attachment) (*Network, error) {
	n, err := open(ctx, o, inUse)
	if err != nil {
		return nil, fmt.Errorf("%w: open network %s: %w", engine.ErrNetwork, o.Bridge, err)
	}
	return n, nil
}

func open(ctx context.Context, o Options, inUse []Attachment) (_ *Network, err error) {
	if err := checkOptions(o); err != nil {
		return nil, err
	}
	n := &Network{
		options: o, log: o.Logger, ready: make(chan *namespace, o.Ready), makers: make(chan struct{}, maxMakers),
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1), wakeCleaner: make(chan struct{}, 1),
		attached: map[string]*attached{}, kept: map[string]*attached{}, holds: map[string]*hold{}, opened: make(chan struct{}),
		others: othersPorts{own: o.Bridge}, passed: make(chan struct{}, maxPassedOfAll()),
	}
	if n.lock, err = lockBridge(o.Shared, o.Bridge); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.release()
		}
	}()
	if err := os.MkdirAll(o.Directory, 0o700); err != nil {
		return nil, err
	}
	for _, a := range inUse {
		n.attached[a.Container] = newAttached(a)
	}
	n.resolver.read()
	if n.bridge, err = openBridge(o, inUse, n.resolver.addresses(), n.log); err != nil {
		return nil, err
	}
	if err := setSysctls(o.Bridge, n.log); err != nil {
		return nil, err
	}
	if err := n.bridge.sweep(inUse); err != nil {
		return nil, err
	}
	if n.addresses, err = openAddresses(o, n.bridge.prefix, inUse, time.Now()); err != nil {
		return nil, err
	}
	for _, a := range n.attached {
		a.reserved = n.reserveAgain(a.Attachment)
	}
	n.reserveKept(o.Kept)
	n.filter = newFilter(n.bridge, o)
	if err := n.filter.openARP(); errors.Is(err, unix.EOPNOTSUPP) {
		n.log.Warn().Err(err).Msg("the kernel does not filter ARP (CONFIG_NF_TABLES_ARP): " +
			"a container with NET_RAW can fill the host's table of neighbours")
	} else if err != nil {
		return nil, err
	}
	if n.uplinks, err = bridgeUplinks(o.Bridge); err != nil {
		return nil, err
	}
	if err := n.rewrite(); err != nil {
		return nil, err
	}
	if err := n.forgetEarlierFlows(inUse); err != nil {
		n.log.Warn().Err(err).Msg("cannot delete conntrack entries of removed containers")
	}
	if err := sweepAccepts(); err != nil {
		return nil, fmt.Errorf("remove accept rules of former bridges: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := n.start(); err != nil {
		return nil, err
	}
	return n, nil
}

// forgetEarlierFlows deletes the connections of containers that an earlier process had, and that
// are gone.
func (n *Network) forgetEarlierFlows(inUse []Attachment) error {
	keep := map[netip.Addr]bool{n.bridge.gateway: true}
	for _, a := range inUse {
		keep[a.Address] = true
	}
	return forgetFlows(func(a netip.Addr) bool { return n.bridge.prefix.Contains(a) && !keep[a] })
}

// start begins to follow changes of the host and to make namespaces.
func (n *Network) start() error {
	ctx, stop := context.WithCancel(context.Background())
	n.stop, n.serving = stop, ctx
	if err := n.follow(ctx); err != nil {
		stop()
		n.running.Wait()
		return err
	}
	n.running.Go(func() { n.fillReady(ctx) })
	n.running.Go(func() { n.cleanUpDetached(ctx) })
	return nil
}

func checkOptions(o Options) error {
	switch {
	case o.Bridge == "" || len(o.Bridge) >= unix.IFNAMSIZ || !validName(o.Bridge):
		return fmt.Errorf("bridge: %q is not 1 to %d letters, digits, '-', '_' and '.'", o.Bridge,
			unix.IFNAMSIZ-1)
	case o.Directory == "":
		return errors.New("directory: empty")
	case o.Shared == "":
		return errors.New("shared: empty")
	case o.Ready < 0 || o.Ready > maxPorts:
		return fmt.Errorf("ready: %d is not 0 to %d", o.Ready, maxPorts)
	case o.Quarantine < 0:
		return fmt.Errorf("quarantine: %v is negative", o.Quarantine)
	case !o.Subnet.IsValid():
		return nil
	case !o.Subnet.Addr().Is4() || o.Subnet.Bits() < 8 || o.Subnet.Bits() > 29:
		return fmt.Errorf("subnet: %v is not an IPv4 range from /8 to /29", o.Subnet)
	}
	return nil
}

func validName(name string) bool {
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_',
			c == '.':
		default:
			return false
		}
	}
	return name != "." && name != ".."
}

// Close removes what was made ahead, and the bridge, the table and the accept rules when no
// container is attached. Attached containers keep their network; their published ports go on, but
// are not reserved until the next [Open].
func (n *Network) Close() {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.closed = true
	n.mu.Unlock()

	n.stop()
	n.running.Wait()
	n.release()
}

// release closes every descriptor, and removes what the host has of a network without containers.
func (n *Network) release() {
	close(n.ready)
	for ns := range n.ready {
		ns.close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.attached {
		a.close()
	}
	for _, a := range n.kept {
		a.close()
	}
	removed := false
	if len(n.attached) == 0 {
		err := n.remove()
		if err != nil {
			n.log.Warn().Err(err).Msg("cannot remove the network")
		}
		removed = err == nil
	}
	if n.addresses != nil {
		n.addresses.close()
	}
	_ = n.filter.disconnect()
	if err := unlockBridge(n.lock, removed); err != nil {
		n.log.Warn().Err(err).Msg("cannot remove the lock of the bridge")
	}
}

func (n *Network) remove() error {
	if n.bridge.index == 0 {
		return nil // Open made nothing
	}
	return errors.Join(removeAccepts(n.bridge.name), n.filter.remove(), n.bridge.remove())
}
