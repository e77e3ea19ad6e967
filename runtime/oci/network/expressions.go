package network

import (
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// register is the first of the 32-bit registers, which compound keys are put together in.
const register = 8 // NFT_REG32_00

// metaOutputKind is the kind of the interface that a packet leaves by (NFT_META_OIFKIND).
const metaOutputKind expr.MetaKey = 27

// Offsets in headers, in bytes.
const (
	sourceAddress      = 12 // IPv4
	destinationAddress = 16
	destinationPort    = 2 // TCP and UDP
	sourceHardware     = 6 // Ethernet
)

func match(parts ...any) []expr.Any {
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

func zeroTerminated(s string) []byte { return append([]byte(s), 0) }

func from(interfaceName string) []expr.Any {
	return meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, zeroTerminated(interfaceName))
}

func to(interfaceName string) []expr.Any {
	return meta(expr.MetaKeyOIFNAME, expr.CmpOpEq, zeroTerminated(interfaceName))
}

func ipv4(op expr.CmpOp) []expr.Any {
	return meta(expr.MetaKeyNFPROTO, op, []byte{unix.NFPROTO_IPV4})
}

func protocol(number byte) []expr.Any {
	return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number})
}

func toKind(kind string) []expr.Any {
	return meta(metaOutputKind, expr.CmpOpEq, zeroTerminated(kind))
}

// toNoneOf matches packets that leave by an interface that the set does not have.
func toNoneOf(set string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: set, Invert: true},
	}
}

func network(offset uint32, into uint32) expr.Any {
	return &expr.Payload{DestRegister: into, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func port(into uint32) expr.Any {
	return &expr.Payload{DestRegister: into, Base: expr.PayloadBaseTransportHeader,
		Offset: destinationPort, Len: 2}
}

// withoutSYN matches TCP segments that do not begin a connection.
func withoutSYN() []expr.Any {
	const flags, syn = 13, 0x02
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
	}
}

// within matches packets whose address at the offset is in the range.
func within(offset uint32, prefix netip.Prefix) []expr.Any {
	mask := native(0)
	copy(mask, ipNet(prefix).Mask)
	return []expr.Any{
		network(offset, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	}
}

// addressKind matches packets by what their destination is to the host (RTN_LOCAL, RTN_UNICAST).
func addressKind(op expr.CmpOp, kind uint32) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: op, Register: 1, Data: native(kind)},
	}
}

// Bits of a connection's state and status.
const (
	replying  = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	confirmed = 1 << 3 // IPS_CONFIRMED: the table of connections has it
	published = 1 << 5 // IPS_DST_NAT: the destination was changed
)

// conntrack matches packets whose connection has one of the bits.
func conntrack(key expr.CtKey, bits uint32) []expr.Any { return ofConnection(key, bits, expr.CmpOpNeq) }

// conntrackNone matches packets whose connection has none of them.
func conntrackNone(key expr.CtKey, bits uint32) []expr.Any {
	return ofConnection(key, bits, expr.CmpOpEq)
}

// backwards matches packets to the side that has begun their connection, and errors (ICMP) about
// packets from it.
func backwards() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}}, // IP_CT_DIR_REPLY
	}
}

func ofConnection(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: op, Register: 1, Data: native(0)},
	}
}

// toPublished changes the destination of the packet to what the map has for it: an address and a
// port.
func toPublished(mapName string) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: register, DestRegister: register, IsDestRegSet: true, SetName: mapName},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: register,
			RegProtoMin: register + 1, Specified: true},
	}
}

func accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }
func drop() expr.Any   { return &expr.Verdict{Kind: expr.VerdictDrop} }
