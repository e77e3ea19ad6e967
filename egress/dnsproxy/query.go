package dnsproxy

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"

	"sandbox.internal/egress/policy"
)

const (
	headerSize = 12
	// fixedSize is what a record has between its name and its data: type, class, time to live and
	// length.
	fixedSize = 10
	// maxExtra is how many additional records a query may have: one for EDNS, one for a signature.
	maxExtra = 2

	bitResponse         = 1 << 15
	bitTruncated        = 1 << 9
	bitRecursionDesired = 1 << 8
	bitCheckingDisabled = 1 << 4
	maskOpcode          = 15 << 11
	maskRcode           = 15

	bitDNSSEC = 1 << 15 // in the TTL of an OPT record
)

var errMalformed = errors.New("malformed DNS message")

// header is that of a message (RFC 1035, 4.1.1).
type header struct {
	id, bits                              uint16
	questions, answers, authority, extras int
}

func readHeader(data []byte) (header, bool) {
	if len(data) < headerSize {
		return header{}, false
	}
	word := func(i int) uint16 { return binary.BigEndian.Uint16(data[2*i:]) }
	return header{word(0), word(1), int(word(2)), int(word(3)), int(word(4)), int(word(5))}, true
}

// query is one that name servers are to be asked.
type query struct {
	*dns.Msg // header, question, and EDNS without options

	name     string // normal form
	decision policy.Decision
	dryRun   bool
}

// datagramSize is how long an answer over UDP may be, in bytes.
func (q *query) datagramSize() int {
	size := dns.MinMsgSize
	if edns := q.IsEdns0(); edns != nil {
		size = max(size, int(edns.UDPSize()))
	}
	return size
}

// parseQuery reads what is needed of a query, and makes nothing of the rest: the records of a
// message can take hundreds of times its length once they are taken apart. The message returned is
// nil when there is nothing to answer, and has a header alone together with an error.
func parseQuery(data []byte) (*dns.Msg, error) {
	head, ok := readHeader(data)
	if !ok || head.bits&bitResponse != 0 {
		return nil, errMalformed
	}
	msg := new(dns.Msg)
	msg.Id, msg.Opcode = head.id, int(head.bits&maskOpcode>>11)
	msg.RecursionDesired, msg.CheckingDisabled = head.bits&bitRecursionDesired != 0,
		head.bits&bitCheckingDisabled != 0
	if msg.Opcode != dns.OpcodeQuery {
		return msg, nil
	}
	if head.questions != 1 || head.answers+head.authority > 0 || head.extras > maxExtra {
		return msg, errMalformed
	}
	question, at, err := readQuestion(data)
	if err != nil {
		return msg, err
	}
	for range head.extras {
		r, err := readRecord(data, at)
		if err != nil {
			return msg, err
		}
		if r.kind == dns.TypeOPT && r.name == "." {
			msg.SetEdns0(r.class, r.ttl&bitDNSSEC != 0)
		}
		at = r.end
	}
	msg.Question = []dns.Question{question}
	return msg, nil
}

// readQuestion reads the first question, and returns where the next part begins.
func readQuestion(data []byte) (dns.Question, int, error) {
	name, at, err := dns.UnpackDomainName(data, headerSize)
	if err != nil || at+4 > len(data) {
		return dns.Question{}, 0, errMalformed
	}
	return dns.Question{Name: name, Qtype: binary.BigEndian.Uint16(data[at:]),
		Qclass: binary.BigEndian.Uint16(data[at+2:])}, at + 4, nil
}

// record is one whose data is not looked at.
type record struct {
	name        string
	kind, class uint16
	ttl         uint32
	end         int // where the next one begins
}

func readRecord(data []byte, at int) (record, error) {
	name, at, err := dns.UnpackDomainName(data, at)
	if err != nil || at+fixedSize > len(data) {
		return record{}, errMalformed
	}
	fixed := data[at:]
	r := record{name: name, kind: binary.BigEndian.Uint16(fixed),
		class: binary.BigEndian.Uint16(fixed[2:]), ttl: binary.BigEndian.Uint32(fixed[4:])}
	r.end = at + fixedSize + int(binary.BigEndian.Uint16(fixed[8:]))
	if r.end > len(data) {
		return record{}, errMalformed
	}
	return r, nil
}
