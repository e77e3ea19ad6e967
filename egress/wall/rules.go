package wall

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandbox.internal/egress/policy"
)

// Priorities of the chains, in the order in which a packet passes them.
const (
	beforeAll  nftables.ChainPriority = -300
	beforeNAT  nftables.ChainPriority = -110 // Docker's own redirect of 127.0.0.11 is at -100
	gateAt     nftables.ChainPriority = -10
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

// Conntrack marks: of the guard's own connections, and of those that are redirected to it. Both have
// queryBit.
const (
	queryBit             = 1
	guardConnection      = queryBit
	redirectedConnection = queryBit | 2
)

// raise queues what does not depend on the policy.
func (w *Wall) raise(options Options) {
	w.table = &nftables.Table{Name: wallTable, Family: nftables.TableFamilyINet}
	w.conn.AddTable(w.table) // so that deleting it cannot fail
	w.conn.DelTable(w.table)
	w.conn.AddTable(w.table)
	w.learned = w.timedSet("learned", false)

	refuse := w.chain("refuse")
	w.rule(refuse, l4proto(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	w.rule(refuse, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH,
		Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})

	// With the gate closed, open connections only wait: they go on when the guard is back.
	closed := w.chain("closed")
	w.rule(closed, state(expr.CtStateBitESTABLISHED), drop())
	w.rule(closed, goTo("refuse"))

	w.pass, w.deny, w.would = "pass", "deny", "would"
	w.rule(w.chain(w.pass), state(expr.CtStateBitNEW), logTo(options.LogGroup, prefixPass))
	w.rule(w.chain(w.deny), logTo(options.LogGroup, prefixDeny))
	w.rule(w.chain(w.would), state(expr.CtStateBitNEW), logTo(options.LogGroup, prefixWould))
	w.rule(&nftables.Chain{Name: w.pass, Table: w.table}, accept())
	w.rule(&nftables.Chain{Name: w.deny, Table: w.table}, goTo("refuse"))
	w.rule(&nftables.Chain{Name: w.would, Table: w.table}, accept())
	w.verdict = w.chain("verdict")
	w.answer = w.chain("answer")

	w.raiseHooks(options)
}

func (w *Wall) raiseHooks(options Options) {
	// Whatever mark a packet has, only the guard may set one.
	unmark := w.hook("unmark", nftables.ChainTypeFilter, nftables.ChainHookOutput, beforeAll,
		nftables.ChainPolicyAccept)
	w.rule(unmark, mark(expr.CmpOpNeq, w.mark), &expr.Immediate{Register: 1, Data: native(0)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1})

	// Connections to the API are not in the table of connections, which the sandbox can fill: with one
	// that is full the service could not change the policy. The rules below know them by their port.
	toAPI, fromAPI := options.api(destination, port), options.api(source, sourcePort)
	w.rule(unmark, meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, text("lo")), fromAPI, &expr.Notrack{})
	arrive := w.hook("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, beforeAll,
		nftables.ChainPolicyAccept)
	w.rule(arrive, meta(expr.MetaKeyIIFNAME, expr.CmpOpNeq, text("lo")), toAPI, &expr.Notrack{})

	dns := w.hook("dns", nftables.ChainTypeNAT, nftables.ChainHookOutput, beforeNAT,
		nftables.ChainPolicyAccept)
	w.rule(dns, mark(expr.CmpOpEq, w.mark), accept())
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		w.rule(dns, ipv4(expr.CmpOpEq), l4proto(proto), port(53),
			setConnectionMark(redirectedConnection),
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(options.DNSPort)},
			&expr.Redir{RegisterProtoMin: 1})
	}

	out := w.hook("out", nftables.ChainTypeFilter, nftables.ChainHookOutput, filterAt,
		nftables.ChainPolicyDrop)
	own := w.mark | gateBit
	w.rule(out, ipv4(expr.CmpOpEq), address(destination, dockerDNS, 32), mark(expr.CmpOpNeq, own),
		goTo("refuse"))
	loopback := address(destination, netip.AddrFrom4([4]byte{127}), 8)
	// A query of the guard itself that is redirected is one along an entry that the sandbox made. It
	// would ask the sandbox.
	w.rule(out, guardsOwn(w.mark), ipv4(expr.CmpOpEq), loopback, load(destination),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: dockerDNS.AsSlice()}, redirected(),
		goTo("refuse"))
	w.rule(out, iface(expr.MetaKeyOIFNAME, "lo"), accept())
	// A redirected packet still shows the interface that it was meant for. One of a socket that is
	// bound to an interface would leave through it all the same: see below.
	w.rule(out, ipv4(expr.CmpOpEq), loopback, redirected(), accept())
	w.rule(out, ipv4(expr.CmpOpNeq), goTo("refuse"))
	// What the kernel refuses a client of the API with. It does so only while the gate is closed or
	// when the guard has ended.
	w.rule(out, fromAPI, reset(), accept())
	w.rule(out, gateClosed(), goTo("closed"))
	// The API begins no connection. The sandbox could, with a socket that it bound while nothing
	// listened there, and the policy would not be asked about what follows.
	w.rule(out, fromAPI, notBeginning(), accept())
	w.rule(out, fromAPI, goTo("refuse"))
	w.rule(out, mark(expr.CmpOpEq, own), setConnectionMark(guardConnection), accept())
	// answers to who came in; see below
	w.rule(out, l4proto(unix.IPPROTO_TCP), state(expr.CtStateBitESTABLISHED),
		direction(replyDirection), accept())
	// A query that was not redirected goes along an entry that the guard made, to the name server.
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		w.rule(out, l4proto(proto), port(53), goTo("refuse"))
	}
	w.rule(out, goTo(w.verdict.Name))

	// The way out is known only here. A packet of a bound socket keeps to its interface, whatever its
	// destination was changed to.
	wire := w.hook("wire", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, filterAt,
		nftables.ChainPolicyAccept)
	w.rule(wire, meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, text("lo")), ipv4(expr.CmpOpEq), loopback,
		drop())

	in := w.hook("in", nftables.ChainTypeFilter, nftables.ChainHookInput, filterAt,
		nftables.ChainPolicyAccept)
	// Refused, and not dropped: a client whose first packet is lost tries again after a second, and
	// one that had a connection to a guard that has exited waits forever.
	w.rule(in, l4proto(unix.IPPROTO_TCP), port(options.APIPort), gateClosed(), goTo("refuse"))
	w.rule(in, iface(expr.MetaKeyIIFNAME, "lo"), accept())
	for _, network := range options.Neighbours {
		neighbour := within(source, network)
		for _, gateway := range options.Gateways {
			neighbour = append(neighbour, isNot(source, gateway)...)
		}
		w.rule(in, toAPI, neighbour, drop()) // which is in no table of connections
		w.rule(in, ipv4(expr.CmpOpEq), neighbour, direction(originalDirection), drop())
	}
	w.rule(in, toAPI, accept())
	// Only TCP comes in, and only from its beginning. Otherwise a peer that the sandbox had talked to
	// would come in once the entry of that is gone, and what the sandbox sends to it would be answers.
	w.rule(in, l4proto(unix.IPPROTO_TCP), state(expr.CtStateBitNEW), notBeginning(), drop())
	w.rule(in, l4proto(unix.IPPROTO_TCP), direction(originalDirection), accept())
	w.rule(in, ipv4(expr.CmpOpNeq), drop())
	w.rule(in, gateClosed(), drop())
	w.rule(in, &expr.Ct{Key: expr.CtKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(guardConnection)}, accept())
	// such as the news that a packet was too large
	w.rule(in, state(expr.CtStateBitRELATED), accept())
	w.rule(in, tooLarge(options.APIPort), accept()) // of the API, whose connections have no such state
	w.rule(in, direction(originalDirection), drop())
	w.rule(in, goTo(w.answer.Name))
}

// fill queues the rules of a policy in place of those before.
func (w *Wall) fill(compiled *policy.Compiled) error {
	w.generation++
	// Packets write to this set. Each policy has its own, because one that is judged by the old
	// rules at the moment of the change would otherwise put back what the change took away.
	w.inUse = w.timedSet(fmt.Sprintf("in_use_%d", w.generation), true)
	w.policySets = []*nftables.Set{w.inUse}
	w.conn.FlushChain(w.verdict)
	w.conn.FlushChain(w.answer)
	deny := w.deny
	if compiled.DryRun() {
		deny = w.would
		w.rule(w.answer, accept())
	}
	for _, part := range []struct {
		action policy.Action
		out    string
		in     expr.Any
	}{{policy.Deny, deny, drop()}, {policy.Allow, w.pass, accept()}} {
		set, err := w.rangeSet(part.action, compiled.Ranges())
		if err != nil {
			return err
		}
		if set == nil {
			continue
		}
		w.rule(w.verdict, load(destination), in(set), goTo(part.out))
		w.rule(w.answer, load(source), in(set), part.in)
	}
	// An open connection keeps its address reachable, for itself alone.
	touch := &expr.Dynset{SrcRegKey: 1, SetName: w.inUse.Name, SetID: w.inUse.ID,
		Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: inUse}
	if compiled.Default() == policy.Allow {
		// for a policy that denies by default and allows the name
		w.rule(w.verdict, state(expr.CtStateBitESTABLISHED), load(destination), touch)
		w.rule(w.verdict, goTo(w.pass))
		w.rule(w.answer, accept())
		return nil
	}
	w.rule(w.verdict, state(expr.CtStateBitESTABLISHED), load(destination), in(w.inUse), touch,
		accept())
	// apart from what follows, because a full set takes no more
	w.rule(w.verdict, load(destination), in(w.learned), touch)
	w.rule(w.verdict, load(destination), in(w.learned), goTo(w.pass))
	w.rule(w.verdict, goTo(deny))
	w.rule(w.answer, load(source), in(w.inUse), accept())
	w.rule(w.answer, load(source), in(w.learned), accept())
	w.rule(w.answer, drop())
	return nil
}

// rangeSet queues a set of the ranges that have the action; nil when there are none.
func (w *Wall) rangeSet(action policy.Action, ranges []policy.Range) (*nftables.Set, error) {
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
		Table: w.table, Name: fmt.Sprintf("%s_%d", action, w.generation),
		KeyType: nftables.TypeIPAddr, Interval: true,
	}
	if err := w.conn.AddSet(set, nil); err != nil {
		return nil, err
	}
	w.policySets = append(w.policySets, set)
	return set, w.addElements(set, elements)
}

func (w *Wall) timedSet(name string, dynamic bool) *nftables.Set {
	size := uint32(maxAddresses)
	if dynamic {
		size = maxInUse
	}
	set := &nftables.Set{
		Table: w.table, Name: name, KeyType: nftables.TypeIPAddr, HasTimeout: true,
		Timeout: time.Minute, Dynamic: dynamic, Size: size,
	}
	// It fails for anonymous sets only.
	_ = w.conn.AddSet(set, nil)
	return set
}

func (w *Wall) chain(name string) *nftables.Chain {
	return w.conn.AddChain(&nftables.Chain{Name: name, Table: w.table})
}

func (w *Wall) hook(name string, kind nftables.ChainType, at *nftables.ChainHook,
	priority nftables.ChainPriority, fallback nftables.ChainPolicy) *nftables.Chain {
	return w.conn.AddChain(&nftables.Chain{Name: name, Table: w.table, Type: kind, Hooknum: at,
		Priority: &priority, Policy: &fallback})
}

// rule queues a rule made of parts, each an expression or several.
func (w *Wall) rule(chain *nftables.Chain, parts ...any) {
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: chain, Exprs: flatten(parts)})
}
