package network

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of bridge ports that the libraries do not name.
const (
	portLearning = 8  // IFLA_BRPORT_LEARNING
	portIsolated = 33 // IFLA_BRPORT_ISOLATED
	portLocked   = 39 // IFLA_BRPORT_LOCKED; kernels before 5.18 ignore it
)

// portName is the name of the host's end of the veth pair of a container with this address.
func (b *bridge) portName(address netip.Addr) string {
	bytes := address.As4()
	return b.mark + hex.EncodeToString(bytes[:])
}

// portAddress is the reverse of portName.
func (b *bridge) portAddress(name string) (netip.Addr, bool) {
	if len(name) != len(b.mark)+8 || name[:len(b.mark)] != b.mark {
		return netip.Addr{}, false
	}
	bytes, err := hex.DecodeString(name[len(b.mark):])
	if err != nil {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(bytes)), true
}

// addPort makes a veth pair: one end, eth0, in the namespace, the other a port of the bridge.
func (b *bridge) addPort(address netip.Addr, namespace int) error {
	name := b.portName(address)
	err := b.createPair(name, address, namespace)
	if errors.Is(err, unix.EEXIST) {
		// It belongs to a container that had this address and is gone; the kernel is not done with
		// it.
		if link, found := netlink.LinkByName(name); found == nil {
			_ = netlink.LinkDel(link)
		}
		err = b.createPair(name, address, namespace)
	}
	if errors.Is(err, unix.EXFULL) {
		return fmt.Errorf("the bridge %s has its %d ports: no more containers fit", b.name, maxPorts)
	}
	if err != nil {
		return fmt.Errorf("make the veth pair %s: %w", name, err)
	}
	if err := b.connect(name, address); err != nil {
		if link, found := netlink.LinkByName(name); found == nil {
			_ = netlink.LinkDel(link)
		}
		return err
	}
	return b.addNeighbour(address)
}

// port returns the host's end of the veth pair of an address, nil if there is none.
func (b *bridge) port(address netip.Addr) (netlink.Link, error) {
	link, err := netlink.LinkByName(b.portName(address))
	if err != nil {
		return nil, absent(err)
	}
	return link, nil
}

func (b *bridge) createPair(name string, address netip.Addr, namespace int) error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK,
		unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	request.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(b.index))))
	request.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(b.mtu))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("eth0"))
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(namespace)))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(b.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, hardware(address))
	request.AddData(info)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// connect sets a port up. It is isolated from the other ports first, takes no hardware address but
// its own from frames, and forwards no frames from others.
func (b *bridge) connect(name string, address netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	if link.Attrs().MasterIndex != b.index {
		if err := netlink.LinkSetMasterByIndex(link, b.index); err != nil {
			return fmt.Errorf("connect %s to the bridge: %w", name, err)
		}
	}
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Attrs().Index)
	message.Flags, message.Change = unix.IFF_UP, unix.IFF_UP
	request.AddData(message)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	port := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	port.AddRtAttr(portLearning, nl.Uint8Attr(0))
	port.AddRtAttr(portIsolated, nl.Uint8Attr(1))
	port.AddRtAttr(portLocked, nl.Uint8Attr(1))
	request.AddData(info)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set up the bridge port %s: %w", name, err)
	}
	err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE,
		State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: hardware(address)})
	if err != nil {
		return fmt.Errorf("enter the hardware address of %s: %w", name, err)
	}
	return nil
}

// addNeighbour enters the container's hardware address in the host's table for good: another
// container cannot claim its address by ARP.
func (b *bridge) addNeighbour(address netip.Addr) error {
	if err := netlink.NeighSet(neighbour(b.index, address)); err != nil {
		return fmt.Errorf("enter the neighbour %v: %w", address, err)
	}
	return nil
}

func (b *bridge) forgetNeighbour(address netip.Addr) error {
	if err := netlink.NeighDel(neighbour(b.index, address)); err != nil && !isGone(err) {
		return fmt.Errorf("remove the neighbour %v: %w", address, err)
	}
	return nil
}

// neighbour is the permanent entry of an address at an interface.
func neighbour(index int, address netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: address.AsSlice(), HardwareAddr: hardware(address)}
}

// hardware is the hardware address that belongs to an address: locally administered, unicast.
func hardware(address netip.Addr) net.HardwareAddr {
	bytes := address.As4()
	return append(net.HardwareAddr{0x02, 0x73}, bytes[:]...)
}
