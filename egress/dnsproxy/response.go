package dnsproxy

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"sandbox.internal/egress/policy"
)

const (
	// maxRecords is how many records an answer may have.
	maxRecords = 1024
	// maxAddresses is how many of an answer's addresses are passed on, and learned.
	maxAddresses = 256
)

// found is what a name server's answer has come to.
type found struct {
	decision  policy.Decision // not Allow when the whole answer is refused
	answer    []byte          // for the client, packed
	aliases   []string        // that lead from the name to the addresses
	addresses []netip.Addr
	ttl       time.Duration // of the addresses
	resolved  bool          // the name has records
}

// sanitize takes a name server's answer apart, keeps what belongs to the question, and packs that
// again. The owner of the name chose it, and may work together with the sandbox: it must neither
// cost more than a little memory nor end the egress daemon.
func (p *Proxy) sanitize(ctx context.Context, q *query, raw []byte, head header,
	size int) (result found, err error) {
	select {
	case p.unpacked <- struct{}{}:
		defer func() { <-p.unpacked }()
	case <-ctx.Done():
		return found{}, ctx.Err()
	}
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("%w: %v", errMalformed, failure)
		}
	}()
	answers, authority, err := unpack(raw, head)
	if err != nil {
		return found{}, err
	}
	kept := p.filter(q.name, answers, q.dryRun)
	result = found{decision: kept.decision, aliases: kept.aliases, addresses: kept.addresses, ttl: kept.ttl}
	if !kept.decision.Allowed() {
		return result, nil
	}
	rcode := int(head.bits & maskRcode)
	result.resolved = rcode == dns.RcodeSuccess && head.answers > 0
	answer := kept.reply(q.Msg, rcode, authority)
	answer.Truncate(size)
	answer.Compress = true
	if result.answer, err = answer.Pack(); err != nil {
		return found{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	// A record whose data is too short is unpacked without an error and packed to something that
	// cannot be read.
	if err := new(dns.Msg).Unpack(result.answer); err != nil {
		return found{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return result, nil
}

// unpack returns the records of the answer section, and of the authority section the zone's SOA,
// for clients that cache that there is nothing. Records of type HIP are left out: they alone may
// hold any number of names, each of two bytes in the message and of a thousand outside of it.
func unpack(raw []byte, head header) (answers, authority []dns.RR, err error) {
	if head.answers+head.authority > maxRecords {
		return nil, nil, fmt.Errorf("%w: %d records", errMalformed, head.answers+head.authority)
	}
	_, at, err := readQuestion(raw)
	if err != nil {
		return nil, nil, err
	}
	for i := range head.answers + head.authority {
		r, err := readRecord(raw, at)
		if err != nil {
			return nil, nil, err
		}
		isAnswer := i < head.answers
		if isAnswer && r.kind != dns.TypeHIP || !isAnswer && r.kind == dns.TypeSOA {
			whole, _, err := dns.UnpackRR(raw[:r.end], at)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: %w", errMalformed, err)
			}
			if isAnswer {
				answers = append(answers, whole)
			} else {
				authority = append(authority, whole)
			}
		}
		at = r.end
	}
	return answers, authority, nil
}
