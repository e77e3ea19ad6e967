package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Bounds on what one container has in the host's table of connections (conntrack). A full table
// refuses new connections of the host and of all containers, so each gets a share of
// nf_conntrack_max. What a small host gives is enough for a program that opens many; a large host
// gives no more than the kernel can count, which looks at each of them when one is added (a new
// connection besides 16384 others takes it milliseconds).
const (
	flowsShare = 16
	leastFlows = 4096
	maxFlows   = 16384
)

// mostFlows is how many connections a container may begin. Without the kernel's modules, which the
// nftables table loads, the limit of the host is not known yet.
func mostFlows() uint32 {
	text, err := readSysctl("netfilter/nf_conntrack_max")
	if err != nil {
		return leastFlows
	}
	all, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return leastFlows
	}
	return min(max(uint32(all)/flowsShare, leastFlows), maxFlows)
}

// subsystem is the first byte of the types of messages about connections (NFNL_SUBSYS_CTNETLINK).
const subsystem = 1 << 8

// forgetFlows deletes the entries of connections that addresses began, or answered, for which gone
// returns true. Otherwise the peer of a container that is gone could go on to send, through the
// entry, to the next container that gets the address.
//
// The whole table is read once, and only what is deleted is kept.
func forgetFlows(gone func(netip.Addr) bool) error {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer socket.Close()
	shared := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
	request := func(operation, flags int) *nl.NetlinkRequest {
		r := nl.NewNetlinkRequest(subsystem|operation, flags)
		r.Sockets = shared
		r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
		return r
	}
	var entries [][]byte
	err = request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP).ExecuteIter(unix.NETLINK_NETFILTER, 0,
		func(message []byte) bool {
			entry := message[min(nl.SizeofNfgenmsg, len(message)):]
			if gone(sourceOf(entry, nl.CTA_TUPLE_ORIG)) || gone(sourceOf(entry, nl.CTA_TUPLE_REPLY)) {
				entries = append(entries, bytes.Clone(entry))
			}
			return true
		})
	if err != nil {
		return fmt.Errorf("read the connections: %w", err)
	}
	var failed []error
	for _, entry := range entries {
		r := request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		r.AddRawData(entry) // with its id: no other connection is meant
		if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, fmt.Errorf("delete a connection: %w", err))
		}
	}
	return errors.Join(failed...)
}

// sourceOf is the source address in one direction of an entry; zero when it has none.
func sourceOf(entry []byte, direction uint16) netip.Addr {
	source := attribute(attribute(attribute(entry, direction), nl.CTA_TUPLE_IP), nl.CTA_IP_V4_SRC)
	address, _ := netip.AddrFromSlice(source)
	return address
}

// attribute is the value of a netlink attribute; nil when it is not there.
func attribute(attributes []byte, kind uint16) []byte {
	for len(attributes) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(attributes))
		if length < unix.SizeofNlAttr || length > len(attributes) {
			return nil
		}
		if binary.NativeEndian.Uint16(attributes[2:])&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return attributes[unix.SizeofNlAttr:length]
		}
		aligned := (length + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
		attributes = attributes[min(aligned, len(attributes)):]
	}
	return nil
}
