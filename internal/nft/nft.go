// Package nft has the expressions of nftables rules that the network of the local engine and the
// firewall of the egress filter share. Those that compare load into register 1.
package nft

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Offsets of the addresses in an IPv4 header, in bytes.
const (
	SourceAddress      = 12
	DestinationAddress = 16
)

// Directions of a connection's packets, as conntrack numbers them. Errors (ICMP) about packets of
// one direction have the other one.
const (
	Original = 0
	Reply    = 1
)

// Flags of TCP segments.
const (
	FIN = 1 << 0
	SYN = 1 << 1
	RST = 1 << 2
	ACK = 1 << 4
)

// Join returns the expressions of the parts in their order. Each part is an [expr.Any] or a slice
// of them.
func Join(parts ...any) []expr.Any {
	var all []expr.Any
	for _, part := range parts {
		switch part := part.(type) {
		case []expr.Any:
			all = append(all, part...)
		case expr.Any:
			all = append(all, part)
		default: // a rule without it would match more
			panic(fmt.Sprintf("a part of a rule is of the type %T", part))
		}
	}
	return all
}

// Native returns a number in the byte order of this machine.
func Native(n uint32) []byte { return binaryutil.NativeEndian.PutUint32(n) }

// Text returns a name as the kernel compares it, with a zero byte at its end.
func Text(s string) []byte { return append([]byte(s), 0) }

// Meta compares a property of packets.
func Meta(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

// From matches packets that arrive by the interface.
func From(name string) []expr.Any { return Meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, Text(name)) }

// To matches packets that leave by the interface.
func To(name string) []expr.Any { return Meta(expr.MetaKeyOIFNAME, expr.CmpOpEq, Text(name)) }

// IPv4 matches packets of IPv4, with [expr.CmpOpNeq] all others.
func IPv4(op expr.CmpOp) []expr.Any {
	return Meta(expr.MetaKeyNFPROTO, op, []byte{unix.NFPROTO_IPV4})
}

// Protocol matches packets of a transport protocol, by its number.
func Protocol(number byte) []expr.Any {
	return Meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{number})
}

// Address loads the address at the offset in the IPv4 header into a register.
func Address(offset, into uint32) expr.Any {
	return &expr.Payload{DestRegister: into, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

// Within matches packets whose address at the offset in the IPv4 header is in the prefix.
func Within(offset uint32, prefix netip.Prefix) []expr.Any {
	return []expr.Any{
		Address(offset, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: net.CIDRMask(prefix.Bits(), 32), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	}
}

// TCPFlags compares those flags of TCP segments that the mask has.
func TCPFlags(mask byte, op expr.CmpOp, flags byte) []expr.Any {
	const offset = 13
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{flags}},
	}
}

// Connection matches packets whose connection has at least one of the bits.
func Connection(key expr.CtKey, bits uint32) []expr.Any { return connection(key, bits, expr.CmpOpNeq) }

// ConnectionWithout matches packets whose connection has none of the bits.
func ConnectionWithout(key expr.CtKey, bits uint32) []expr.Any {
	return connection(key, bits, expr.CmpOpEq)
}

func connection(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: Native(bits), Xor: Native(0)},
		&expr.Cmp{Op: op, Register: 1, Data: Native(0)},
	}
}

// Direction matches packets of one direction of their connection, [Original] or [Reply].
func Direction(direction byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{direction}},
	}
}

// Accept ends the evaluation of a packet's table.
func Accept() expr.Any { return &expr.Verdict{Kind: expr.VerdictAccept} }

// Drop discards the packet.
func Drop() expr.Any { return &expr.Verdict{Kind: expr.VerdictDrop} }
