package network

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
)

// register is the first of the 32-bit registers, which compound keys are put together in.
const register = 8 // NFT_REG32_00

// metaOutputKind is the kind of the interface that a packet leaves by (NFT_META_OIFKIND).
const metaOutputKind expr.MetaKey = 27

// Offsets in headers, in bytes.
const (
	destinationPort = 2 // TCP and UDP
	sourceHardware  = 6 // Ethernet
)

func toKind(kind string) []expr.Any {
	return nft.Meta(metaOutputKind, expr.CmpOpEq, nft.Text(kind))
}

// toNoneOf matches packets that leave by an interface that the set does not have.
func toNoneOf(set string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: set, Invert: true},
	}
}

func port(into uint32) expr.Any {
	return &expr.Payload{DestRegister: into, Base: expr.PayloadBaseTransportHeader,
		Offset: destinationPort, Len: 2}
}

// addressKind matches packets by what their destination is to the host (RTN_LOCAL, RTN_UNICAST).
func addressKind(op expr.CmpOp, kind uint32) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: op, Register: 1, Data: nft.Native(kind)},
	}
}

// Bits of a connection's state and status.
const (
	replying  = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	confirmed = 1 << 3 // IPS_CONFIRMED: the table of connections has it
	published = 1 << 5 // IPS_DST_NAT: the destination was changed
)

// toPublished changes the destination of the packet to what the map has for it: an address and a
// port.
func toPublished(mapName string) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: register, DestRegister: register, IsDestRegSet: true, SetName: mapName},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: register,
			RegProtoMin: register + 1, Specified: true},
	}
}
