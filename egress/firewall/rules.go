package firewall

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandbox.internal/egress/policy"
	"sandbox.internal/internal/nft"
)

// Priorities of the chains, in the order in which a packet passes them.
const (
	beforeAll  nftables.ChainPriority = -300
	beforeNAT  nftables.ChainPriority = -110 // Docker's own redirect of 127.0.0.11 is at -100
	passMarkAt nftables.ChainPriority = -10
	filterAt   nftables.ChainPriority = 0
	logsPerSec                        = 5000
)

// Prefixes of log messages: what was decided.
const (
	prefixPass  = "pass"
	prefixDeny  = "deny"
	prefixWould = "would"
)

// dockerDNS is where Docker's own name server is. It would ask others on behalf of the sandbox.
var dockerDNS = netip.MustParseAddr("127.0.0.11")

// Conntrack marks: of the egress daemon's own connections, and of those that are redirected to it.
// Both have queryBit.
const (
	queryBit             = 1
	ownConnection        = queryBit
	redirectedConnection = queryBit | 2
)

// addFixedRules queues what does not depend on the policy.
func (f *Firewall) addFixedRules(options Options) {
	f.table = &nftables.Table{Name: filterTable, Family: nftables.TableFamilyINet}
	f.conn.AddTable(f.table) // so that deleting it cannot fail
	f.conn.DelTable(f.table)
	f.conn.AddTable(f.table)
	f.learned = f.timedSet("learned", false)

	refuse := f.chain("refuse")
	f.rule(refuse, nft.Protocol(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	f.rule(refuse, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH,
		Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})

	// While packets are not marked, open connections only wait: they continue when the egress
	// daemon runs again.
	unmarkedOut := f.chain("unmarked")
	f.rule(unmarkedOut, state(expr.CtStateBitESTABLISHED), nft.Drop())
	f.rule(unmarkedOut, goTo("refuse"))

	f.pass, f.deny, f.would = "pass", "deny", "would"
	f.rule(f.chain(f.pass), state(expr.CtStateBitNEW), logTo(options.LogGroup, prefixPass))
	f.rule(f.chain(f.deny), logTo(options.LogGroup, prefixDeny))
	f.rule(f.chain(f.would), state(expr.CtStateBitNEW), logTo(options.LogGroup, prefixWould))
	f.rule(&nftables.Chain{Name: f.pass, Table: f.table}, nft.Accept())
	f.rule(&nftables.Chain{Name: f.deny, Table: f.table}, goTo("refuse"))
	f.rule(&nftables.Chain{Name: f.would, Table: f.table}, nft.Accept())
	f.verdict = f.chain("verdict")
	f.answer = f.chain("answer")

	f.addHooks(options)
}

func (f *Firewall) addHooks(options Options) {
	// Whatever mark a packet has, only the egress daemon may set one.
	unmark := f.hook("unmark", nftables.ChainTypeFilter, nftables.ChainHookOutput, beforeAll,
		nftables.ChainPolicyAccept)
	f.rule(unmark, mark(expr.CmpOpNeq, f.mark), &expr.Immediate{Register: 1, Data: nft.Native(0)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1})

	// Connections to the API are not in the table of connections, which the sandbox can fill: with
	// one that is full the service could not change the policy. The rules below know them by their
	// port.
	toAPI, fromAPI := options.api(nft.DestinationAddress, port), options.api(nft.SourceAddress, sourcePort)
	f.rule(unmark, nft.Meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, nft.Text("lo")), fromAPI, &expr.Notrack{})
	arrive := f.hook("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, beforeAll,
		nftables.ChainPolicyAccept)
	f.rule(arrive, nft.Meta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, nft.Text("lo")), toAPI, &expr.Notrack{})

	dns := f.hook("dns", nftables.ChainTypeNAT, nftables.ChainHookOutput, beforeNAT,
		nftables.ChainPolicyAccept)
	f.rule(dns, mark(expr.CmpOpEq, f.mark), nft.Accept())
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		f.rule(dns, nft.IPv4(expr.CmpOpEq), nft.Protocol(proto), port(53),
			setConnectionMark(redirectedConnection),
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(options.DNSPort)},
			&expr.Redir{RegisterProtoMin: 1})
	}

	out := f.hook("out", nftables.ChainTypeFilter, nftables.ChainHookOutput, filterAt,
		nftables.ChainPolicyDrop)
	own := f.mark | passBit
	f.rule(out, nft.IPv4(expr.CmpOpEq), address(nft.DestinationAddress, dockerDNS, 32), mark(expr.CmpOpNeq, own),
		goTo("refuse"))
	loopback := address(nft.DestinationAddress, netip.AddrFrom4([4]byte{127}), 8)
	// A query of the egress daemon itself that is redirected is one along an entry that the sandbox
	// made. It would ask the sandbox.
	f.rule(out, ownPackets(f.mark), nft.IPv4(expr.CmpOpEq), loopback, load(nft.DestinationAddress),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: dockerDNS.AsSlice()}, redirected(),
		goTo("refuse"))
	f.rule(out, nft.To("lo"), nft.Accept())
	// A redirected packet still shows the interface that it was meant for. One of a socket that is
	// bound to an interface would leave through it all the same: see below.
	f.rule(out, nft.IPv4(expr.CmpOpEq), loopback, redirected(), nft.Accept())
	f.rule(out, nft.IPv4(expr.CmpOpNeq), goTo("refuse"))
	// What the kernel refuses a client of the API with. It does so only while packets are not
	// marked or when the egress daemon has ended.
	f.rule(out, fromAPI, reset(), nft.Accept())
	f.rule(out, unmarked(), goTo("unmarked"))
	// The API begins no connection. The sandbox could, with a socket that it bound while nothing
	// listened there, and the policy would not be asked about what follows.
	f.rule(out, fromAPI, notBeginning(), nft.Accept())
	f.rule(out, fromAPI, goTo("refuse"))
	f.rule(out, mark(expr.CmpOpEq, own), setConnectionMark(ownConnection), nft.Accept())
	// answers to who came in; see below
	f.rule(out, nft.Protocol(unix.IPPROTO_TCP), state(expr.CtStateBitESTABLISHED),
		nft.Direction(nft.Reply), nft.Accept())
	// A query that was not redirected goes along an entry that the egress daemon made, to the name
	// server.
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		f.rule(out, nft.Protocol(proto), port(53), goTo("refuse"))
	}
	f.rule(out, goTo(f.verdict.Name))

	// The way out is known only here. A packet of a bound socket keeps to its interface, whatever
	// its destination was changed to.
	wire := f.hook("wire", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, filterAt,
		nftables.ChainPolicyAccept)
	f.rule(wire, nft.Meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, nft.Text("lo")), nft.IPv4(expr.CmpOpEq), loopback,
		nft.Drop())

	in := f.hook("in", nftables.ChainTypeFilter, nftables.ChainHookInput, filterAt,
		nftables.ChainPolicyAccept)
	// Refused, and not dropped: a client whose first packet is lost tries again after a second, and
	// one that had a connection to an egress daemon that has exited waits forever.
	f.rule(in, nft.Protocol(unix.IPPROTO_TCP), port(options.APIPort), unmarked(), goTo("refuse"))
	f.rule(in, nft.From("lo"), nft.Accept())
	for _, network := range options.Neighbours {
		neighbour := nft.Within(nft.SourceAddress, network)
		for _, gateway := range options.Gateways {
			neighbour = append(neighbour, isNot(nft.SourceAddress, gateway)...)
		}
		f.rule(in, toAPI, neighbour, nft.Drop()) // which is in no table of connections
		f.rule(in, nft.IPv4(expr.CmpOpEq), neighbour, nft.Direction(nft.Original), nft.Drop())
	}
	f.rule(in, toAPI, nft.Accept())
	// Only TCP comes in, and only from its beginning. Otherwise a peer that the sandbox had talked
	// to would come in once the entry of that is gone, and what the sandbox sends to it would be
	// answers.
	f.rule(in, nft.Protocol(unix.IPPROTO_TCP), state(expr.CtStateBitNEW), notBeginning(), nft.Drop())
	f.rule(in, nft.Protocol(unix.IPPROTO_TCP), nft.Direction(nft.Original), nft.Accept())
	f.rule(in, nft.IPv4(expr.CmpOpNeq), nft.Drop())
	f.rule(in, unmarked(), nft.Drop())
	f.rule(in, &expr.Ct{Key: expr.CtKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: nft.Native(ownConnection)}, nft.Accept())
	// such as the news that a packet was too large
	f.rule(in, state(expr.CtStateBitRELATED), nft.Accept())
	f.rule(in, tooLarge(options.APIPort), nft.Accept()) // of the API, whose connections have no such state
	f.rule(in, nft.Direction(nft.Original), nft.Drop())
	f.rule(in, goTo(f.answer.Name))
}

// addPolicyRules queues the rules of a policy in place of those before.
func (f *Firewall) addPolicyRules(compiled *policy.Compiled) error {
	f.generation++
	// Packets write to this set. Each policy has its own, because one that is judged by the old
	// rules at the moment of the change would otherwise put back what the change took away.
	f.inUse = f.timedSet(fmt.Sprintf("in_use_%d", f.generation), true)
	f.policySets = []*nftables.Set{f.inUse}
	f.conn.FlushChain(f.verdict)
	f.conn.FlushChain(f.answer)
	deny := f.deny
	if compiled.DryRun() {
		deny = f.would
		f.rule(f.answer, nft.Accept())
	}
	for _, part := range []struct {
		action policy.Action
		out    string
		in     expr.Any
	}{{policy.Deny, deny, nft.Drop()}, {policy.Allow, f.pass, nft.Accept()}} {
		set, err := f.rangeSet(part.action, compiled.Ranges())
		if err != nil {
			return err
		}
		if set == nil {
			continue
		}
		f.rule(f.verdict, load(nft.DestinationAddress), in(set), goTo(part.out))
		f.rule(f.answer, load(nft.SourceAddress), in(set), part.in)
	}
	// An open connection keeps its address reachable, for itself alone.
	touch := &expr.Dynset{SrcRegKey: 1, SetName: f.inUse.Name, SetID: f.inUse.ID,
		Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: inUse}
	if compiled.Default() == policy.Allow {
		// for a policy that denies by default and allows the name
		f.rule(f.verdict, state(expr.CtStateBitESTABLISHED), load(nft.DestinationAddress), touch)
		f.rule(f.verdict, goTo(f.pass))
		f.rule(f.answer, nft.Accept())
		return nil
	}
	f.rule(f.verdict, state(expr.CtStateBitESTABLISHED), load(nft.DestinationAddress), in(f.inUse), touch,
		nft.Accept())
	// apart from what follows, because a full set takes no more
	f.rule(f.verdict, load(nft.DestinationAddress), in(f.learned), touch)
	f.rule(f.verdict, load(nft.DestinationAddress), in(f.learned), goTo(f.pass))
	f.rule(f.verdict, goTo(deny))
	f.rule(f.answer, load(nft.SourceAddress), in(f.inUse), nft.Accept())
	f.rule(f.answer, load(nft.SourceAddress), in(f.learned), nft.Accept())
	f.rule(f.answer, nft.Drop())
	return nil
}

// rangeSet queues a set of the ranges that have the action; nil when there are none.
func (f *Firewall) rangeSet(action policy.Action, ranges []policy.Range) (*nftables.Set, error) {
	var elements []nftables.SetElement
	for _, r := range ranges {
		if r.Action != action {
			continue
		}
		elements = append(elements, nftables.SetElement{Key: r.First.AsSlice()})
		if next := r.Last.Next(); next.IsValid() { // no end: up to the last address
			elements = append(elements, nftables.SetElement{Key: next.AsSlice(), IntervalEnd: true})
		}
	}
	if len(elements) == 0 {
		return nil, nil
	}
	set := &nftables.Set{
		Table: f.table, Name: fmt.Sprintf("%s_%d", action, f.generation),
		KeyType: nftables.TypeIPAddr, Interval: true,
	}
	if err := f.conn.AddSet(set, nil); err != nil {
		return nil, err
	}
	f.policySets = append(f.policySets, set)
	return set, f.addElements(set, elements)
}

func (f *Firewall) timedSet(name string, dynamic bool) *nftables.Set {
	size := uint32(maxAddresses)
	if dynamic {
		size = maxInUse
	}
	set := &nftables.Set{
		Table: f.table, Name: name, KeyType: nftables.TypeIPAddr, HasTimeout: true,
		Timeout: time.Minute, Dynamic: dynamic, Size: size,
	}
	// It fails for anonymous sets only.
	_ = f.conn.AddSet(set, nil)
	return set
}

func (f *Firewall) chain(name string) *nftables.Chain {
	return f.conn.AddChain(&nftables.Chain{Name: name, Table: f.table})
}

func (f *Firewall) hook(name string, kind nftables.ChainType, at *nftables.ChainHook,
	priority nftables.ChainPriority, fallback nftables.ChainPolicy) *nftables.Chain {
	return f.conn.AddChain(&nftables.Chain{Name: name, Table: f.table, Type: kind, Hooknum: at,
		Priority: &priority, Policy: &fallback})
}

// rule queues a rule made of parts, each an expression or several.
func (f *Firewall) rule(chain *nftables.Chain, parts ...any) {
	f.conn.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: nft.Join(parts...)})
}
