package dnsproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"

	"sandbox.internal/egress/policy"
)

// everything allows all names and addresses.
type everything struct{}

func (everything) Name(string) (policy.Decision, bool) {
	return policy.Decision{Action: policy.Allow}, false
}
func (everything) Resolved(
	netip.Addr) policy.Decision {
	return policy.Decision{Action: policy.Allow}
}
func (everything) Learn(context.Context, string, []string, []netip.Addr, time.Duration) error {
	return nil
}
func (everything) Decided(name string, decision policy.Decision, dryRun, resolved bool) {}

func offline() *Proxy { return New(nil, nil, Options{Decider: everything{}, Logger: zerolog.Nop()}) }

func pack(t testing.TB, msg *dns.Msg) []byte {
	t.Helper()
	data, err := msg.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// FuzzQuery: whatever a client sends, what it gets is an answer to that message or nothing, and
// what is asked on its behalf is one question.
func FuzzQuery(f *testing.F) {
	plain := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
	f.Add(pack(f, plain))
	edns := plain.Copy().SetEdns0(4096, true)
	f.Add(pack(f, edns))
	f.Add(pack(f, new(dns.Msg).SetReply(plain)))
	f.Add(pack(f, new(dns.Msg).SetNotify("example.com.")))
	f.Add(pack(f, new(dns.Msg).SetQuestion(`a\.b.example.`, dns.TypeANY)))
	f.Add(bytes.Repeat([]byte{0xc0, 0x0c}, maxQuery/2))
	p := offline()
	f.Fuzz(func(t *testing.T, data []byte) {
		q, answer := p.read(data)
		if q != nil && answer != nil {
			t.Fatal("both a question for name servers and an answer")
		}
		if q != nil {
			if len(q.Question) != 1 || len(q.Answer)+len(q.Ns) > 0 || len(q.Extra) > 1 {
				t.Fatalf("asked on behalf: %s", q.Msg)
			}
			answer = refuse(q.Msg, dns.RcodeServerFailure, "reason")
			if answer == nil {
				t.Fatalf("the question of %s cannot be written", q.Msg)
			}
		}
		if answer == nil {
			return
		}
		head, ok := readHeader(answer)
		if !ok || head.bits&bitResponse == 0 || head.id != binary.BigEndian.Uint16(data) ||
			head.answers > 0 || len(answer) > 1024 {
			t.Fatalf("the answer is %x", answer)
		}
	})
}

// FuzzAnswer: whatever a name server answers, what is passed on is bounded and well formed.
func FuzzAnswer(f *testing.F) {
	asked := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
	for _, text := range []string{
		"www.example.com. 60 IN A 192.0.2.1", "www.example.com. 60 IN CNAME www.example.com.",
		"www.example.com. 60 IN HTTPS 1 . alpn=h2 ipv4hint=192.0.2.7",
		"www.example.com. 60 IN TXT a b", "www.example.com. 60 IN SOA a. b. 1 2 3 4 5",
		"www.example.com. 60 IN NSEC a. A TXT",
	} {
		record, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		answer := new(dns.Msg).SetReply(asked)
		answer.Answer, answer.Ns = []dns.RR{record}, []dns.RR{record}
		f.Add(pack(f, answer), uint16(512))
	}
	f.Add(bomb(dns.TypeHIP, 0, 0, 0, 0), uint16(65535))
	p := offline()
	f.Fuzz(func(t *testing.T, raw []byte, size uint16) {
		head, ok := readHeader(raw)
		if !ok || len(raw) > dns.MaxMsgSize {
			return
		}
		limit := max(int(size), dns.MinMsgSize)
		result, err := p.sanitize(t.Context(), &query{Msg: newQuery(t), name: "www.example.com"}, raw,
			head, limit)
		if err != nil {
			return
		}
		if len(result.addresses) > maxAddresses || len(result.answer) > limit {
			t.Fatalf("%d addresses, and %d bytes of %d", len(result.addresses), len(result.answer),
				limit)
		}
		if err := new(dns.Msg).Unpack(result.answer); err != nil {
			t.Fatalf("the forwarded answer cannot be read: %v: %x", err, result.answer)
		}
	})
}

func newQuery(t testing.TB) *dns.Msg {
	t.Helper()
	return new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
}

// bomb is the longest answer that there can be, one record full of references to the longest name
// behind a beginning.
func bomb(kind uint16, beginning ...byte) []byte {
	data := []byte{0, 1, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}
	for range 3 {
		data = append(data, 63)
		data = append(data, bytes.Repeat([]byte{0xff}, 63)...)
	}
	data = append(append(data, 61), bytes.Repeat([]byte{0xff}, 61)...)
	data = append(data, 0, 0, 1, 0, 1) // the end of the name, type, class
	data = append(data, 0xc0, 0x0c)
	data = binary.BigEndian.AppendUint16(data, kind)
	data = append(data, 0, 1, 0, 0, 0, 60)
	length := dns.MaxMsgSize - 1 - len(data) - 2
	data = binary.BigEndian.AppendUint16(data, uint16(length))
	data = append(data, beginning...)
	return append(data,
		bytes.Repeat([]byte{0xc0, 0x0c}, (length-len(beginning))/2+1)[:length-len(beginning)]...)
}

// many is as long, and has as many records as an answer may.
func many(kind uint16) []byte {
	data := bomb(kind)[:12+255+4]
	binary.BigEndian.PutUint16(data[6:], maxRecords)
	for range maxRecords {
		data = append(data, 0xc0, 0x0c)
		data = binary.BigEndian.AppendUint16(data, kind)
		data = append(data, 0, 1, 0, 0, 0, 60)
		const length = 50
		data = binary.BigEndian.AppendUint16(data, length)
		data = append(data, bytes.Repeat([]byte{0xc0, 0x0c}, length/2)...)
	}
	return data
}

// TestAnswersTakeBoundedMemory, of every type that the library takes apart: a kind of record that
// is new there must not bring back what a single answer could take before, 34 MiB of the sidecar's
// 64.
func TestAnswersTakeBoundedMemory(t *testing.T) {
	const most = 8 << 20
	kinds := make([]uint16, 0, len(dns.TypeToRR))
	for kind := range dns.TypeToRR {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		for _, raw := range [][]byte{bomb(kind), bomb(kind, 0, 0, 0, 0), many(kind)} {
			head, _ := readHeader(raw)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := unpack(raw, head)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > most {
				t.Errorf("%s: an answer of %d bytes takes %d KiB (%v)", dns.TypeToString[kind],
					len(raw), got>>10, err)
			}
		}
	}
	if _, _, err := unpack(bomb(dns.TypeA), header{answers: maxRecords + 1}); err == nil ||
		!strings.Contains(err.Error(), "records") {
		t.Errorf("too many records: %v", err)
	}
}
