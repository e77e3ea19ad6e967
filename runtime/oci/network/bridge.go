package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/flock"
)

// maxPorts is how many ports a Linux bridge can have (BR_MAX_PORTS, less port 0).
const maxPorts = 1023

// alias marks bridges that this package made.
const alias = "sandbox.internal"

// bridge is the bridge that the containers' veth pairs are ports of.
type bridge struct {
	name    string
	index   int
	prefix  netip.Prefix // masked
	gateway netip.Addr   // the bridge's own address
	mtu     int
	mark    string // how the names of its ports begin
}

// openBridge makes the bridge, or takes the one that there is.
func openBridge(o Options, inUse []Attachment, servers []netip.Addr,
	log zerolog.Logger) (bridge, error) {
	sum := sha256.Sum256([]byte(o.Bridge))
	b := bridge{name: o.Bridge, mark: "v" + hex.EncodeToString(sum[:3])}
	link, err := netlink.LinkByName(b.name)
	if gone := (netlink.LinkNotFoundError{}); errors.As(err, &gone) {
		link, err = nil, nil
	}
	if err != nil {
		return b, fmt.Errorf("look up the bridge: %w", err)
	}
	if link != nil && (link.Type() != "bridge" || link.Attrs().Alias != alias) {
		return b, errors.New("an interface of this name exists that the service did not make: " +
			"choose another name, or remove it")
	}
	choosing, err := lockChoice(o.Shared)
	if err != nil {
		return b, err
	}
	defer func() { _ = choosing.Close() }()
	if err := b.choose(o, link, inUse, servers, log); err != nil {
		return b, err
	}
	if b.mtu, err = uplinkMTU(); err != nil {
		return b, err
	}
	if link == nil {
		if link, err = b.create(); err != nil {
			return b, err
		}
	}
	b.index = link.Attrs().Index
	return b, b.configure(link)
}

// lockChoice makes sure that one service of the host at a time chooses a range of addresses: the
// next one finds its route. It ends when the file is closed.
func lockChoice(directory string) (*os.File, error) {
	if err := os.MkdirAll(directory, 0o711); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(directory, "subnets"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Exclusive(file); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("choose a subnet: %s: %w", file.Name(), err)
	}
	return file, nil
}

// choose sets the range of addresses. Running containers keep theirs.
func (b *bridge) choose(o Options, link netlink.Link, inUse []Attachment, servers []netip.Addr,
	log zerolog.Logger) error {
	routes, err := routesBeside(link)
	if err != nil {
		return err
	}
	var has netip.Prefix
	if link != nil {
		if has, err = prefixOf(link); err != nil {
			return err
		}
	}
	used := slices.ContainsFunc(inUse, func(a Attachment) bool { return has.Contains(a.Address) })
	diverted := divertedBy(routes, has)
	switch configured := o.Subnet.Masked(); {
	case used:
		b.prefix = has
		if configured.IsValid() && configured != has {
			log.Warn().Stringer("subnet", has).Stringer("configured", configured).
				Msg("configured subnet not used yet: running containers have addresses of the former one")
		}
		if diverted != "" {
			log.Warn().Stringer("subnet", has).Str("route", diverted).
				Msg("the host has another route to addresses of the subnet: containers with these cannot be reached")
		}
	case configured.IsValid():
		if route := divertedBy(routes, configured); route != "" {
			return fmt.Errorf("subnet: %v has addresses that the host has another route to (%s): choose another range",
				configured, route)
		}
		b.prefix = configured
	case has.IsValid() && diverted == "":
		b.prefix = has
	default:
		if b.prefix, err = freeSubnet(b.name, routes, servers); err != nil {
			return err
		}
	}
	b.gateway = b.prefix.Addr().Next()
	for _, a := range inUse {
		if !b.prefix.Contains(a.Address) {
			return fmt.Errorf("container %s has the address %v, which is not in the subnet %v",
				a.Container, a.Address, b.prefix)
		}
	}
	return nil
}

// create makes the bridge, marked as ours from the start.
func (b *bridge) create() (netlink.Link, error) {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK,
		unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(b.name)))
	// An address of its own does not change with the ports.
	request.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, hardware(b.gateway)))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_BR_MCAST_SNOOPING, nl.Uint8Attr(0))
	request.AddData(info)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return nil, fmt.Errorf("make the bridge: %w", err)
	}
	link, err := netlink.LinkByName(b.name)
	if err != nil {
		return nil, fmt.Errorf("look up the bridge: %w", err)
	}
	// Creation does not set the alias on every kernel.
	return link, netlink.LinkSetAlias(link, alias)
}

// configure gives the bridge its address and no other, and sets it up.
func (b *bridge) configure(link netlink.Link) error {
	addresses, err := netlink.AddrList(link, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("list the bridge's addresses: %w", err)
	}
	want := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(b.gateway, b.prefix.Bits()))}
	for _, a := range addresses {
		if a.IPNet.String() != want.IPNet.String() {
			if err := netlink.AddrDel(link, &a); err != nil {
				return fmt.Errorf("remove the bridge's address %v: %w", a.IPNet, err)
			}
		}
	}
	if err := netlink.AddrReplace(link, want); err != nil {
		return fmt.Errorf("give the bridge the address %v: %w", want.IPNet, err)
	}
	if err := netlink.LinkSetHardwareAddr(link, hardware(b.gateway)); err != nil {
		return fmt.Errorf("set the bridge's hardware address: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the bridge up: %w", err)
	}
	return nil
}

// sweep removes the ports and neighbour entries of containers that are not in use, and connects
// those that are.
func (b *bridge) sweep(inUse []Attachment) error {
	used := map[netip.Addr]bool{}
	for _, a := range inUse {
		used[a.Address] = true
		if err := b.addNeighbour(a.Address); err != nil {
			return err
		}
	}
	ports, err := b.ports()
	if err != nil {
		return err
	}
	for address, link := range ports {
		switch {
		case !used[address]:
			if err := removeLink(link); err != nil {
				return err
			}
		case link.Attrs().MasterIndex != b.index:
			if err := b.connect(link.Attrs().Name, address); err != nil && !isGone(err) {
				return err
			}
		}
	}
	entries, err := list(func() ([]netlink.Neigh, error) {
		return netlink.NeighList(b.index, unix.AF_INET)
	})
	if err != nil {
		return fmt.Errorf("list the bridge's neighbours: %w", err)
	}
	for _, entry := range entries {
		address, _ := netip.AddrFromSlice(entry.IP)
		if address = address.Unmap(); entry.State == netlink.NUD_PERMANENT && !used[address] {
			if err := b.forgetNeighbour(address); err != nil {
				return err
			}
		}
	}
	return nil
}

// ports returns the host's ends of all veth pairs, by their addresses.
func (b *bridge) ports() (map[netip.Addr]netlink.Link, error) {
	links, err := list(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	ports := map[netip.Addr]netlink.Link{}
	for _, link := range links {
		if address, ok := b.portAddress(link.Attrs().Name); ok {
			ports[address] = link
		}
	}
	return ports, nil
}

// list repeats a listing that changed while it was read.
func list[T any](read func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) ||
		errors.Is(err, unix.EINVAL)
}

// remove removes the bridge, which has no ports in use, and those that the kernel has not removed
// yet.
func (b *bridge) remove() error {
	ports, err := b.ports()
	all := []error{err}
	for _, port := range ports {
		all = append(all, removeLink(port))
	}
	link, err := netlink.LinkByIndex(b.index)
	if err == nil {
		err = removeLink(link)
	}
	return errors.Join(append(all, absent(err))...)
}

// removeLink removes an interface. The kernel may do so at this very moment: its namespace went
// with its process.
func removeLink(link netlink.Link) error {
	if err := netlink.LinkDel(link); err != nil && !isGone(err) {
		return fmt.Errorf("remove %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// absent returns the error of a look-up, nil where it found no interface.
func absent(err error) error {
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) || isGone(err) {
		return nil
	}
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if address = address.Unmap(); !ok || !address.Is4() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(address, bits).Masked(), true
}

// prefixOf is the range of the first address of a bridge; zero when it has none.
func prefixOf(link netlink.Link) (netip.Prefix, error) {
	addresses, err := netlink.AddrList(link, unix.AF_INET)
	if err != nil || len(addresses) == 0 {
		return netip.Prefix{}, err
	}
	prefix, _ := toPrefix(addresses[0].IPNet)
	return prefix, nil
}

// broadcast is the last address of a range.
func broadcast(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().As4()
	last := binary.BigEndian.Uint32(bytes[:]) | (1<<(32-p.Bits()) - 1)
	binary.BigEndian.PutUint32(bytes[:], last)
	return netip.AddrFrom4(bytes)
}
