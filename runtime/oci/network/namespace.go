package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/thread"
)

// namespace is a network namespace that this process holds.
type namespace struct {
	fd      int
	inode   uint64
	address netip.Addr
}

func (ns *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.fd) }

// close closes the descriptor, unless that is another file by now: then a part of this process has
// closed a descriptor that was not its own.
func (ns *namespace) close() {
	var info unix.Stat_t
	if unix.Fstat(ns.fd, &info) == nil && info.Ino == ns.inode {
		_ = unix.Close(ns.fd)
	}
}

// makeNamespace makes a namespace with an address, connected to the bridge.
func (n *Network) makeNamespace() (*namespace, error) {
	address, err := n.addresses.take()
	if err != nil {
		return nil, err
	}
	ns, err := n.bridge.makeNamespace(address)
	if err != nil {
		n.returnAddress(address)
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return ns, nil
}

func (b *bridge) makeNamespace(address netip.Addr) (*namespace, error) {
	opened, connected, configured := make(chan opening), make(chan bool), make(chan error)
	go thread.Run(func() { b.inside(address, opened, connected, configured) })
	first := <-opened
	if first.err != nil {
		return nil, first.err
	}
	ns := &namespace{fd: first.fd, inode: first.inode, address: address}
	err := b.addPort(address, ns.fd)
	connected <- err == nil
	if inner := <-configured; err == nil {
		err = inner
	}
	if err != nil {
		ns.close()
		return nil, err
	}
	return ns, nil
}

// opening is the descriptor of a new namespace, and its inode.
type opening struct {
	fd    int
	inode uint64
	err   error
}

// inside is what is done within a new namespace, on a thread of its own: a thread in another
// namespace must never run anything else.
func (b *bridge) inside(address netip.Addr, opened chan<- opening, connected <-chan bool,
	configured chan<- error) {
	fd, inode, err := unshareNetwork()
	if opened <- (opening{fd, inode, err}); err != nil {
		return
	}
	if !<-connected {
		configured <- nil
		return
	}
	configured <- b.configureEth0(address)
}

// unshareNetwork moves the thread to a new namespace, and returns a descriptor of that and its
// inode.
func unshareNetwork() (fd int, inode uint64, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, 0, fmt.Errorf("unshare: %w", err)
	}
	if err := configureNamespace(); err != nil {
		return -1, 0, err
	}
	fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("open the namespace: %w", err)
	}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		_ = unix.Close(fd)
		return -1, 0, fmt.Errorf("look at the namespace: %w", err)
	}
	return fd, info.Ino, nil
}

// configureNamespace switches IPv6 off in this thread's namespace, and sets the loopback interface
// up.
func configureNamespace() error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it does not exist on a host without IPv6
		return fmt.Errorf("switch IPv6 off: %w", err)
	}
	// As in Docker's containers, every process may listen on low ports. Unlike there, no group may
	// open sockets of echo requests, which is what a new namespace has: what waits in them is
	// counted as no container's memory. Containers with a user namespace cannot set this
	// themselves.
	const firstPort = "ip_unprivileged_port_start"
	if err := os.WriteFile("/proc/sys/net/ipv4/"+firstPort, []byte("0"), 0); err != nil {
		return fmt.Errorf("set net.ipv4.%s: %w", firstPort, err)
	}
	const loopback = 1 // always the first interface
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: loopback}}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	return nil
}

// configureEth0 gives eth0 of this thread's namespace its address and the default route.
//
// The kernel has one table of neighbours for all namespaces, with a common bound
// (net.ipv4.neigh.default.gc_thresh3). So eth0 has no other address on its link, and the gateway's
// hardware address is entered for good: whatever a container sends makes no entry.
func (b *bridge) configureEth0(address netip.Addr) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("look up eth0: %w", err)
	}
	own := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(address, address.BitLen()))}
	if err := netlink.AddrAdd(link, own); err != nil {
		return fmt.Errorf("give eth0 the address %v: %w", address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set eth0 up: %w", err)
	}
	index := link.Attrs().Index
	if err := netlink.NeighSet(neighbour(index, b.gateway)); err != nil {
		return fmt.Errorf("enter the gateway's hardware address: %w", err)
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: ipNet(everywhere),
		Gw: b.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
	if err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return keepOffLink(index, address)
}

var (
	everywhere = netip.MustParsePrefix("0.0.0.0/0")
	multicast  = netip.MustParsePrefix("224.0.0.0/4")
)

// keepOffLink leads back to this thread's namespace what the kernel would take to be on the link in
// spite of the default route, and make a neighbour entry for: packets without a gateway
// (SO_DONTROUTE) of a socket that names eth0, and multicast, which the host drops. The first route
// is in a table that is looked up after the main one.
func keepOffLink(index int, address netip.Addr) error {
	for _, r := range []netlink.Route{
		{Dst: ipNet(everywhere), Table: unix.RT_TABLE_DEFAULT},
		{Dst: ipNet(multicast), Table: unix.RT_TABLE_MAIN},
	} {
		r.LinkIndex, r.Src = index, address.AsSlice()
		r.Type, r.Scope = unix.RTN_LOCAL, netlink.SCOPE_HOST
		if err := netlink.RouteAdd(&r); err != nil {
			return fmt.Errorf("add the route for %v to itself: %w", r.Dst, err)
		}
	}
	return nil
}
