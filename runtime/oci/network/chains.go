package network

import (
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
)

// chain is a base chain with its rules.
type chain struct {
	table    *nftables.Table
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    [][]expr.Any
}

// Priorities of the chains: spoofed packets are dropped first; what a sandbox sends to the host
// once its connection is known and before another table translates the destination, because a port
// that another program publishes is the host's too; what is forwarded just before other tables see
// it.
const (
	first       = -300 // raw
	tracked     = -150 // mangle: connections are tracked at -200
	translation = -100 // dstnat
	filtering   = 0
	sourceNAT   = 100
)

// arpInput is the hook of what the host receives over ARP (NF_ARP_IN).
var arpInput = nftables.ChainHookRef(0)

var loopback = netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)

func (f *filter) chains() []chain {
	chains := []chain{
		f.spoofedChain(), f.hostChain(), f.inputChain(), f.outputChain(), f.forwardChain(),
		f.publishChain(), f.publishLocalChain(), f.masqueradeChain(),
	}
	if f.arp != nil {
		chains = append(chains, f.requestsChain())
	}
	return chains
}

// spoofedChain drops what is not sent as a member of the bridge sends.
func (f *filter) spoofedChain() chain {
	sandbox := nft.From(f.bridge)
	return chain{f.table, "spoofed", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, first, [][]expr.Any{
		nft.Join(sandbox, nft.IPv4(expr.CmpOpNeq), nft.Drop()),
		nft.Join(sandbox, nft.Within(nft.DestinationAddress, loopback), nft.Drop()),
		// A member sends from the address that belongs to its hardware address, and only from it.
		nft.Join(sandbox, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseLLHeader,
			Offset: sourceHardware, Len: 6}, nft.Address(nft.SourceAddress, register+2),
			&expr.Lookup{SourceRegister: register, SetName: membersSet, Invert: true}, nft.Drop()),
	}}
}

// hostChain drops what a sandbox sends to addresses of the host, of the link and of other
// sandboxes, before another table translates them, and bounds its connections.
func (f *filter) hostChain() chain {
	sandbox := nft.From(f.bridge)
	return chain{f.table, "host", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, tracked, slices.Concat(
		[][]expr.Any{nft.Join(sandbox, answers(), nft.Accept())},
		f.bound(),
		[][]expr.Any{
			nft.Join(sandbox, nft.Protocol(unix.IPPROTO_UDP), toNameServer()),
			nft.Join(sandbox, nft.Protocol(unix.IPPROTO_TCP), toNameServer()),
			nft.Join(sandbox, addressKind(expr.CmpOpNeq, unix.RTN_UNICAST), nft.Drop()),
			nft.Join(sandbox, nft.Within(nft.DestinationAddress, linkLocal), nft.Drop()),
			// Other sandboxes. The host would advise the sender of the direct way (ICMP redirect).
			nft.Join(sandbox, nft.Within(nft.DestinationAddress, f.subnet), nft.Drop()),
		})}
}

// inputChain drops what a sandbox sends to the host itself, but for answers and what name servers
// are asked.
func (f *filter) inputChain() chain {
	sandbox := nft.From(f.bridge)
	return chain{f.table, "input", nftables.ChainTypeFilter, nftables.ChainHookInput, filtering, [][]expr.Any{
		nft.Join(sandbox, answers(), nft.Accept()),
		nft.Join(sandbox, nft.Protocol(unix.IPPROTO_UDP), toNameServer()),
		nft.Join(sandbox, nft.Protocol(unix.IPPROTO_TCP), toNameServer()),
		nft.Join(sandbox, nft.Drop()),
	}}
}

// outputChain drops what only looks like a connection of the host to a sandbox.
func (f *filter) outputChain() chain {
	return chain{f.table, "output", nftables.ChainTypeFilter, nftables.ChainHookOutput, filtering, [][]expr.Any{
		// Without any table connections are not tracked: one that a sandbox made then would count
		// as the host's from what the host sends on.
		nft.Join(nft.To(f.bridge), nft.Protocol(unix.IPPROTO_TCP), nft.Connection(expr.CtKeySTATE, expr.CtStateBitNEW),
			nft.TCPFlags(nft.SYN, expr.CmpOpEq, 0), nft.Drop()),
	}}
}

// forwardChain drops what goes to other containers, and to a sandbox without one of its published
// ports.
func (f *filter) forwardChain() chain {
	sandbox, toSandbox := nft.From(f.bridge), nft.To(f.bridge)
	return chain{f.table, "forward", nftables.ChainTypeFilter, nftables.ChainHookForward, filtering - 1, [][]expr.Any{
		nft.Join(sandbox, toSandbox, nft.Drop()),
		nft.Join(sandbox, answers(), nft.Accept()),
		// Containers of other programs, which lie behind a bridge or a veth pair.
		nft.Join(sandbox, toKind("bridge"), toNoneOf(uplinksSet), nft.Drop()),
		nft.Join(sandbox, toKind("veth"), toNoneOf(uplinksSet), nft.Drop()),
		nft.Join(toSandbox, answers(), nft.Accept()),
		nft.Join(toSandbox, nft.Connection(expr.CtKeySTATUS, published), nft.Accept()),
		nft.Join(toSandbox, nft.Drop()),
	}}
}

// publishChain translates what comes for published ports.
func (f *filter) publishChain() chain {
	return chain{f.table, "publish", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, translation, slices.Concat(
		// The routes, which refuse these from another machine, are asked later. Connections of the
		// host itself do not come here.
		[][]expr.Any{nft.Join(nft.IPv4(expr.CmpOpEq), nft.Within(nft.DestinationAddress, loopback), nft.Accept())},
		publish())}
}

// publishLocalChain is publishChain for what the host itself sends.
func (f *filter) publishLocalChain() chain {
	return chain{f.table, "publish_local", nftables.ChainTypeNAT, nftables.ChainHookOutput, translation, publish()}
}

// masqueradeChain gives the host's address to what leaves it, and to what it sends from its
// loopback interface to a published port.
func (f *filter) masqueradeChain() chain {
	return chain{f.table, "masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, sourceNAT, [][]expr.Any{
		nft.Join(nft.To(f.bridge), nft.IPv4(expr.CmpOpEq), nft.Within(nft.SourceAddress, loopback), &expr.Masq{}),
		nft.Join(nft.Meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, nft.Text(f.bridge)),
			nft.IPv4(expr.CmpOpEq), nft.Within(nft.SourceAddress, f.subnet), nft.Address(nft.SourceAddress, 1),
			// The host itself uses the bridge's address.
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: f.gateway.AsSlice()}, &expr.Masq{}),
	}}
}

// requestsChain drops what sandboxes send over ARP. A request makes an entry of its sender in the
// table of neighbours, which is one for all namespaces. No one has to ask: the entries of the
// bridge and its members are permanent.
func (f *filter) requestsChain() chain {
	return chain{f.arp, "requests", nftables.ChainTypeFilter, arpInput, filtering,
		[][]expr.Any{nft.Join(nft.From(f.bridge), nft.Drop())}}
}

// answers matches what is sent against the direction of a connection: it answers what the rules
// have let pass. What is sent along it passes them each time: the connection may be one of a moment
// without the table.
func answers() []expr.Any {
	return nft.Join(nft.Connection(expr.CtKeySTATE, replying), nft.Direction(nft.Reply))
}

// toNameServer accepts what is sent to port 53 of a name server of the host.
func toNameServer() []expr.Any {
	return nft.Join(nft.IPv4(expr.CmpOpEq), nft.Address(nft.DestinationAddress, 1),
		&expr.Lookup{SourceRegister: 1, SetName: serversSet}, port(1),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 53}}, nft.Accept())
}

// publish translates the host's published ports to those of containers.
func publish() [][]expr.Any {
	hostKind := addressKind(expr.CmpOpEq, unix.RTN_LOCAL)
	return [][]expr.Any{
		nft.Join(nft.IPv4(expr.CmpOpEq), nft.Protocol(unix.IPPROTO_TCP), hostKind,
			nft.Address(nft.DestinationAddress, register), port(register+1), toPublished(boundMap)),
		nft.Join(nft.IPv4(expr.CmpOpEq), nft.Protocol(unix.IPPROTO_TCP), hostKind, port(register),
			toPublished(portsMap)),
	}
}

// bound are the rules that refuse a connection when its container has begun as many as it may.
//
// The kernel holds an attempt in the count until a later one of the same container, and removes
// just a few at a time. So attempts are not counted for a moment after one was refused: they would
// take memory without a bound.
func (f *filter) bound() [][]expr.Any {
	if !f.counts {
		return nil
	}
	const moment = time.Second
	attempt := nft.Join(nft.From(f.bridge), nft.ConnectionWithout(expr.CtKeySTATUS, confirmed), nft.Address(nft.SourceAddress, 1))
	return [][]expr.Any{
		nft.Join(attempt, &expr.Lookup{SourceRegister: 1, SetName: fullSet}, nft.Drop()),
		nft.Join(attempt,
			&expr.Dynset{SrcRegKey: 1, SetName: flowsSet, Operation: unix.NFT_DYNSET_OP_ADD,
				Exprs: []expr.Any{f.countOver(f.flows)}},
			&expr.Dynset{SrcRegKey: 1, SetName: fullSet, Operation: unix.NFT_DYNSET_OP_ADD, Timeout: moment},
			nft.Drop()),
	}
}
