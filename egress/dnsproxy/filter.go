package dnsproxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"sandbox.internal/egress/policy"
)

// maxChain bounds how many aliases are followed.
const maxChain = 16

// kept is what is left of a response.
type kept struct {
	decision  policy.Decision // not Allow when the whole answer is refused
	aliases   []string        // that lead from the name to the addresses
	records   []dns.RR
	addresses []netip.Addr
	ttl       time.Duration // of the addresses
}

// filter keeps the records that belong to the question: those of its name and of the aliases that
// lead on from it. An alias that a rule denies makes the whole answer denied, and so do addresses
// when none of them may be reached. IPv6 addresses are left out, for the sandbox has no IPv6, and
// so are the hints in HTTPS records, which were not learned.
func (p *Proxy) filter(name string, answers []dns.RR, dryRun bool) kept {
	result := kept{decision: policy.Decision{Action: policy.Allow}}
	chain := []string{name}
	for range maxChain {
		next, ok := alias(answers, chain[len(chain)-1])
		if !ok || slices.Contains(chain, next) {
			break
		}
		if d, _ := p.options.Decider.Name(next); !d.Allowed() && d.Reason == policy.ByRule &&
			!dryRun {
			result.decision = d
			return result
		}
		chain = append(chain, next)
	}
	result.aliases = chain[1:]
	lowest := uint32(24 * 60 * 60)
	var last policy.Decision
	denied := 0
	for _, record := range answers {
		header := record.Header()
		if !slices.Contains(chain, strings.ToLower(strings.TrimSuffix(header.Name, "."))) {
			continue
		}
		switch record := record.(type) {
		case *dns.AAAA:
			continue
		case *dns.A:
			addr, ok := netip.AddrFromSlice(record.A.To4())
			if !ok {
				continue
			}
			if len(result.addresses) == maxAddresses {
				continue
			}
			if last = p.options.Decider.Resolved(addr); !last.Allowed() && !dryRun {
				denied++
				continue
			}
			result.addresses = append(result.addresses, addr)
			lowest = min(lowest, header.Ttl)
		case *dns.HTTPS:
			record.Value = withoutHints(record.Value)
		case *dns.SVCB:
			record.Value = withoutHints(record.Value)
		}
		result.records = append(result.records, record)
	}
	if denied > 0 && len(result.addresses) == 0 {
		result.decision = policy.Decision{Action: policy.Deny, Reason: policy.ByAddress,
			Rule: last.Rule}
	}
	result.ttl = time.Duration(lowest) * time.Second
	return result
}

func alias(records []dns.RR, name string) (string, bool) {
	for _, record := range records {
		if cname, ok := record.(*dns.CNAME); ok &&
			strings.EqualFold(strings.TrimSuffix(cname.Hdr.Name, "."), name) {
			return strings.ToLower(strings.TrimSuffix(cname.Target, ".")), true
		}
	}
	return "", false
}

func withoutHints(values []dns.SVCBKeyValue) []dns.SVCBKeyValue {
	return slices.DeleteFunc(values, func(value dns.SVCBKeyValue) bool {
		return value.Key() == dns.SVCB_IPV4HINT || value.Key() == dns.SVCB_IPV6HINT
	})
}

// reply answers a query with what was kept and the zone's SOA.
func (k kept) reply(query *dns.Msg, rcode int, authority []dns.RR) *dns.Msg {
	answer := new(dns.Msg).SetRcode(query, rcode)
	answer.RecursionAvailable = true
	answer.Answer, answer.Ns = k.records, authority
	if edns := query.IsEdns0(); edns != nil {
		answer.SetEdns0(ednsSize, edns.Do())
	}
	return answer
}
