package dnsproxy

import (
	"context"

	"github.com/miekg/dns"

	"sandbox.internal/egress/policy"
)

// read decides a query. It returns the query when name servers are to be asked, and otherwise the
// answer, nil for what gets none.
func (p *Proxy) read(data []byte) (*query, []byte) {
	msg, err := parseQuery(data)
	switch {
	case msg == nil:
		return nil, nil
	case err != nil:
		return nil, refuse(msg, dns.RcodeFormatError, "")
	case msg.Opcode != dns.OpcodeQuery:
		return nil, refuse(msg, dns.RcodeNotImplemented, "")
	}
	question := msg.Question[0]
	name, ok := policy.NormalName(question.Name)
	if !ok || question.Qclass != dns.ClassINET || question.Qtype == dns.TypeAXFR ||
		question.Qtype == dns.TypeIXFR || question.Qtype == dns.TypeANY {
		return nil, refuse(msg, dns.RcodeRefused, "this question is not answered")
	}
	decision, dryRun := p.options.Decider.Name(name)
	if !decision.Allowed() && !dryRun {
		p.options.Decider.Decided(name, decision, false, false)
		return nil, refuse(msg, dns.RcodeNameError, "denied by the egress policy")
	}
	return &query{Msg: msg, name: name, decision: decision, dryRun: dryRun}, nil
}

// resolve asks the name servers and returns the answer, of at most that many bytes.
func (p *Proxy) resolve(ctx context.Context, q *query, size int) []byte {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	decider, name := p.options.Decider, q.name
	found, err := p.ask(ctx, q, size)
	if err != nil {
		p.options.Logger.Debug().Err(err).Str("name", name).Msg("no response from the name servers")
		decider.Decided(name, q.decision, !q.decision.Allowed(), false)
		return refuse(q.Msg, dns.RcodeServerFailure, "")
	}
	if !found.decision.Allowed() {
		decider.Decided(name, found.decision, false, true)
		return refuse(q.Msg, dns.RcodeRefused, "denied by the egress policy")
	}
	if len(found.addresses) > 0 {
		if err := decider.Learn(ctx, name, found.aliases, found.addresses, found.ttl); err != nil {
			p.options.Logger.Warn().Err(err).Str("name",
				name).Msg("cannot open the firewall for the addresses of a name; query not answered")
			return refuse(q.Msg, dns.RcodeServerFailure, "")
		}
	}
	decider.Decided(name, q.decision, q.dryRun && !q.decision.Allowed(), found.resolved)
	return found.answer
}

// refuse makes an answer without records. The reason goes along where the client understands it
// (RFC 8914).
func refuse(query *dns.Msg, rcode int, reason string) []byte {
	answer := new(dns.Msg).SetRcode(query, rcode)
	answer.RecursionAvailable = true
	if query.IsEdns0() != nil {
		answer.SetEdns0(ednsSize, false)
		if reason != "" {
			edns := answer.IsEdns0()
			edns.Option = append(edns.Option,
				&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: reason})
		}
	}
	data, err := answer.Pack()
	if err != nil {
		return nil // the question has a name that cannot be written
	}
	return data
}
