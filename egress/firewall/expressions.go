package firewall

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
)

// passBit is the bit of a packet's mark that only the pass mark table sets.
const passBit = 1

func mark(op expr.CmpOp, mark uint32) []expr.Any {
	return nft.Meta(expr.MetaKeyMARK, op, nft.Native(mark))
}

// unmarked matches packets without the pass mark.
func unmarked() []expr.Any { return maskedMark(passBit, 0) }

// ownPackets matches packets of the egress daemon, whose mark that is, with and without the pass
// mark.
func ownPackets(mark uint32) []expr.Any { return maskedMark(^uint32(passBit), mark) }

func maskedMark(mask, mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: nft.Native(mask),
			Xor: nft.Native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: nft.Native(mark)},
	}
}

// setPassBit puts the pass mark on packets.
func setPassBit() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: nft.Native(^uint32(passBit)),
			Xor: nft.Native(passBit)},
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
	all := nft.Join(nft.IPv4(expr.CmpOpEq), nft.Protocol(unix.IPPROTO_TCP), match(o.APIPort))
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
	return nft.Join(
		nft.IPv4(expr.CmpOpEq), nft.Protocol(unix.IPPROTO_ICMP), at(typeAndCode, 3, 4),
		at(packet, 0x45), // a header of that length
		at(packet+9, unix.IPPROTO_TCP),
		at(packet+header, byte(from>>8), byte(from)),
	)
}

// reset matches TCP segments that end a connection at once.
func reset() []expr.Any { return nft.TCPFlags(nft.RST, expr.CmpOpEq, nft.RST) }

// notBeginning matches TCP segments other than the first of a connection.
func notBeginning() []expr.Any {
	return nft.TCPFlags(nft.FIN|nft.SYN|nft.RST|nft.ACK, expr.CmpOpNeq, nft.SYN)
}

func load(offset uint32) expr.Any { return nft.Address(offset, 1) }

// address matches the first bits of an address; they must be whole bytes.
func address(offset uint32, addr netip.Addr, bits int) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
			Len: uint32(bits / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr.AsSlice()[:bits/8]},
	}
}

// isNot matches every address but one.
func isNot(offset uint32, addr netip.Addr) []expr.Any {
	return []expr.Any{load(offset), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: addr.AsSlice()}}
}

func in(set *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}
}

func state(bits uint32) []expr.Any { return nft.Connection(expr.CtKeySTATE, bits) }

// redirected matches packets of connections whose destination was changed (IPS_DST_NAT).
func redirected() []expr.Any { return nft.Connection(expr.CtKeySTATUS, 1<<5) }

// setConnectionMark marks the packet's connection for as long as its entry is there.
func setConnectionMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: nft.Native(mark)},
		&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: 1},
	}
}

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
