package traffic

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in the headers of IPv4, TCP and UDP, and what the filter looks for there.
const (
	ipLength      = 2
	ipFragment    = 6
	ipProtocol    = 9
	ipDestination = 16
	tcpOffset     = 12
	tcpFlags      = 13
	udpLength     = 4

	fragmentBits = 0x1fff // of ipFragment: where in the datagram the fragment belongs
	offsetBits   = 0xf0   // of tcpOffset: the length of the header, in units of 4 bytes
	flagSYN      = 0x02
	udpHeader    = 8
)

const (
	refused  = 0
	accepted = 1 // byte of the packet that the socket gets
)

// filter is a program for the kernel that accepts what is sent to the address and opens a
// connection, or carries data: TCP with SYN or with a payload, and UDP with a payload. The program
// gets every packet of the interface, from the IPv4 header on. A load beyond its end refuses it.
//
// Acknowledgements, FIN, RST and probes of idle connections are refused. A probe with one byte of
// earlier data, as some systems send it, cannot be distinguished from data without the state of its
// connection, and is accepted.
func filter(address netip.Addr) []bpf.Instruction {
	to := address.As4()
	refuse, accept := bpf.RetConstant{Val: refused}, bpf.RetConstant{Val: accepted}
	tcp := []bpf.Instruction{ // X is the length of the IPv4 header
		bpf.LoadIndirect{Off: tcpFlags, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: flagSYN, SkipFalse: 1},
		accept,
		bpf.LoadIndirect{Off: tcpOffset, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: offsetBits},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{}, // now of both headers
		// Segments that the host has put together are 0 long when they are longer than the field
		// can say; others may be filled up at their end.
		bpf.LoadAbsolute{Off: ipLength, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: 1},
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.JumpIfX{Cond: bpf.JumpGreaterThan, SkipTrue: 1},
		refuse,
		accept,
	}
	udp := []bpf.Instruction{
		bpf.LoadIndirect{Off: udpLength, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: udpHeader, SkipTrue: 1},
		refuse,
		accept,
	}
	return slices.Concat([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		refuse,
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IP, SkipTrue: 1},
		refuse,
		// What is for everyone on the link comes to every container.
		bpf.LoadAbsolute{Off: ipDestination, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(to[:]), SkipTrue: 1},
		refuse,
		// The first fragment of a datagram has the header.
		bpf.LoadAbsolute{Off: ipFragment, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: fragmentBits, SkipTrue: 1},
		refuse,
		bpf.LoadMemShift{Off: 0},
		bpf.LoadAbsolute{Off: ipProtocol, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipFalse: uint8(len(tcp))},
	}, tcp, []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_UDP, SkipTrue: 1},
		refuse,
	}, udp)
}

// attach gives a socket the filter.
func attach(socket int, address netip.Addr) error {
	raw, err := bpf.Assemble(filter(address))
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
