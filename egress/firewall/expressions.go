package firewall

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// passBit is the bit of a packet's mark that only the pass mark table sets.
const passBit = 1

// Directions of a connection's packets, as conntrack numbers them.
const (
	originalDirection = 0
	replyDirection    = 1
)

// Offsets of the addresses in an IPv4 header, in bytes.
const (
	source      = 12
	destination = 16
)

func flatten(parts []any) []expr.Any {
	var all []expr.Any
	for _, part := range parts {
		switch part := part.(type) {
		case []expr.Any:
			all = append(all, part...)
		case expr.Any:
			all = append(all, part)
		}
	}
	return all
}

func native(n uint32) []byte { return binaryutil.NativeEndian.PutUint32(n) }

func meta(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

func ipv4(op expr.CmpOp) []expr.Any {
	return meta(expr.MetaKeyNFPROTO, op, []byte{unix.NFPROTO_IPV4})
}

func l4proto(proto byte) []expr.Any {
	return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{proto})
}

func mark(op expr.CmpOp, mark uint32) []expr.Any { return meta(expr.MetaKeyMARK, op, native(mark)) }

func iface(key expr.MetaKey, name string) []expr.Any {
	return meta(key, expr.CmpOpEq, text(name))
}

// unmarked matches packets without the pass mark.
func unmarked() []expr.Any { return maskedMark(passBit, 0) }

// ownPackets matches packets of the egress daemon, whose mark that is, with and without the pass
// mark.
func ownPackets(mark uint32) []expr.Any { return maskedMark(^uint32(passBit), mark) }

func maskedMark(mask, mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(mask),
			Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(mark)},
	}
}

// setPassBit puts the pass mark on packets.
func setPassBit() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(^uint32(passBit)),
			Xor: native(passBit)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
	}
}

// port matches the destination port of TCP and UDP, and sourcePort the other one.
func port(port uint16) []expr.Any       { return portAt(2, port) }
func sourcePort(port uint16) []expr.Any { return portAt(0, port) }

func portAt(offset uint32, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset,
			Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// api matches TCP segments with the API's port and, if it listens on one address only, that
// address; at says where the address is, and match which of the ports it is.
func (o Options) api(at uint32, match func(uint16) []expr.Any) []expr.Any {
	all := flatten([]any{ipv4(expr.CmpOpEq), l4proto(unix.IPPROTO_TCP), match(o.APIPort)})
	if o.APIAddr.IsValid() && !o.APIAddr.IsUnspecified() {
		all = append(all, address(at, o.APIAddr, 32)...)
	}
	return all
}

// tooLarge matches the ICMP message that a TCP segment from the port was too large for its way.
func tooLarge(from uint16) []expr.Any {
	at := func(offset uint32, data ...byte) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset,
				Len: uint32(len(data))},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data},
		}
	}
	const typeAndCode, packet, header = 0, 8, 20
	return flatten([]any{
		ipv4(expr.CmpOpEq), l4proto(unix.IPPROTO_ICMP), at(typeAndCode, 3, 4),
		at(packet, 0x45), // a header of that length
		at(packet+9, unix.IPPROTO_TCP),
		at(packet+header, byte(from>>8), byte(from)),
	})
}

// Flags of TCP segments.
const (
	fin = 1 << 0
	syn = 1 << 1
	rst = 1 << 2
	ack = 1 << 4
)

// reset matches TCP segments that end a connection at once.
func reset() []expr.Any { return flags(rst, expr.CmpOpEq, rst) }

// notBeginning matches TCP segments other than the first of a connection.
func notBeginning() []expr.Any { return flags(fin|syn|rst|ack, expr.CmpOpNeq, syn) }

func flags(mask byte, op expr.CmpOp, flags byte) []expr.Any {
	const offset = 13
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset,
			Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask},
			Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{flags}},
	}
}

func load(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: 4}
}

// address matches the first bits of an address; they must be whole bytes.
func address(offset uint32, addr netip.Addr, bits int) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
			Len: uint32(bits / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr.AsSlice()[:bits/8]},
	}
}

// within matches addresses of a network, and isNot every address but one.
func within(offset uint32, network netip.Prefix) []expr.Any {
	mask := net.CIDRMask(network.Bits(), 32)
	return []expr.Any{
		load(offset),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: network.Masked().Addr().AsSlice()},
	}
}

func isNot(offset uint32, addr netip.Addr) []expr.Any {
	return []expr.Any{load(offset), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: addr.AsSlice()}}
}

func in(set *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}
}

func state(bits uint32) []expr.Any { return conntrack(expr.CtKeySTATE, bits) }

// redirected matches packets of connections whose destination was changed (IPS_DST_NAT).
func redirected() []expr.Any { return conntrack(expr.CtKeySTATUS, 1<<5) }

func conntrack(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(bits),
			Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)},
	}
}

// setConnectionMark marks the packet's connection for as long as its entry is there.
func setConnectionMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: native(mark)},
		&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: 1},
	}
}

func direction(direction byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{direction}},
	}
}

func accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }
func drop() expr.Any   { return &expr.Verdict{Kind: expr.VerdictDrop} }

func goTo(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// logTo reports the packet's headers, at a rate that a flood of packets cannot exceed.
func logTo(group uint16, prefix string) []expr.Any {
	return []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: logsPerSec, Unit: expr.LimitTimeSecond,
			Burst: logsPerSec},
		&expr.Log{
			Key:     1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
			Group:   group,
			Snaplen: 64,
			Data:    []byte(prefix),
		},
	}
}
