package dnsproxy_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"sandbox.internal/egress/dnsproxy"
	"sandbox.internal/egress/policy"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// decider decides by a policy and records its calls.
type decider struct {
	compiled *policy.Compiled
	failure  error

	mu       sync.Mutex
	learned  map[string][]netip.Addr
	aliases  map[string][]string
	recorded []string
}

func (j *decider) Name(name string) (policy.Decision, bool) {
	return j.compiled.Name(name), j.compiled.DryRun()
}

func (j *decider) Resolved(addr netip.Addr) policy.Decision {
	return j.compiled.Resolved(addr, func(netip.Addr) bool { return false })
}

func (j *decider) Learn(_ context.Context, name string, aliases []string, addresses []netip.Addr,
	_ time.Duration) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.aliases[name] = aliases
	j.learned[name] = append(j.learned[name], addresses...)
	return j.failure
}

func (j *decider) Decided(name string, d policy.Decision, dryRun, resolved bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	text := name + " " + string(d.Action) + " " + string(d.Reason)
	if dryRun {
		text += " dry"
	}
	if resolved {
		text += " resolved"
	}
	j.recorded = append(j.recorded, text)
}

// seen returns the calls so far.
func (j *decider) seen() (map[string][]netip.Addr, []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.learned), slices.Clone(j.recorded)
}

func (j *decider) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failure = err
}

// serve runs handlers on a socket of their own, for UDP and TCP.
func serve(t *testing.T, handler dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	udp, tcp, err := dnsproxy.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	for _, server := range []*dns.Server{{PacketConn: udp, Handler: handler},
		{Listener: tcp, Handler: handler}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		serving.Go(func() { _ = server.ActivateAndServe() })
		wait.For(t, "the start of the server", started)
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return netip.MustParseAddrPort(udp.LocalAddr().String())
}

// start runs a proxy with a policy before the upstream.
func start(t *testing.T, text string, upstream ...netip.AddrPort) (*decider, string) {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	j := &decider{compiled: compiled, learned: make(map[string][]netip.Addr),
		aliases: make(map[string][]string)}
	udp, tcp, err := dnsproxy.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proxy := dnsproxy.New(udp, tcp,
		dnsproxy.Options{Decider: j, Upstream: upstream, Logger: zerolog.Nop()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- proxy.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := wait.For(t, "the end of the proxy", done); err != nil {
			t.Error(err)
		}
	})
	return j, udp.LocalAddr().String()
}

func ask(t *testing.T, network, server, name string, kind uint16) *dns.Msg {
	t.Helper()
	client := dns.Client{Net: network, Timeout: wait.Patience()}
	question := new(dns.Msg).SetQuestion(name, kind)
	question.SetEdns0(1232, false)
	answer, _, err := client.Exchange(question, server)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return answer
}

// zone answers with the records given, whatever is asked.
func zone(t *testing.T, records ...string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, query *dns.Msg) {
		answer := new(dns.Msg).SetReply(query)
		for _, text := range records {
			record, err := dns.NewRR(text)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Answer = append(answer.Answer, record)
		}
		_ = w.WriteMsg(answer)
	}
}

// overTCP gives the whole answer over TCP, and over UDP says that there is more.
func overTCP(whole dns.HandlerFunc) dns.HandlerFunc {
	return func(w dns.ResponseWriter, query *dns.Msg) {
		if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
			answer := new(dns.Msg).SetReply(query)
			answer.Truncated = true
			_ = w.WriteMsg(answer)
			return
		}
		whole(w, query)
	}
}

func texts(records []dns.RR) []string {
	var all []string
	for _, record := range records {
		all = append(all, strings.Join(strings.Fields(record.String()), " "))
	}
	return all
}

func TestOnlyWhatBelongsToTheQuestionPasses(t *testing.T) {
	upstream := serve(t, zone(t,
		"www.ok.test. 60 IN CNAME edge.cdn.test.", "edge.cdn.test. 60 IN A 192.0.2.1",
		"edge.cdn.test. 60 IN A 10.0.0.1",
		"edge.cdn.test. 60 IN AAAA 2001:db8::1", "bystander.test. 60 IN A 192.0.2.99",
		"edge.cdn.test. 60 IN HTTPS 1 . alpn=h2 ipv4hint=192.0.2.7"))
	for _, network := range []string{"udp", "tcp"} {
		j, server := start(t,
			`{"defaultAction":"deny","egress":[{"action":"allow","target":"*.ok.test"},{"action":"deny","target":"10.0.0.0/8"}]}`, upstream)
		answer := ask(t, network, server, "WWW.ok.test.", dns.TypeA)
		want := []string{
			"www.ok.test. 60 IN CNAME edge.cdn.test.", "edge.cdn.test. 60 IN A 192.0.2.1",
			`edge.cdn.test. 60 IN HTTPS 1 . alpn="h2"`,
		}
		if got := texts(answer.Answer); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		learned, recorded := j.seen()
		if got := learned["www.ok.test"]; !slices.Equal(got,
			[]netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
			t.Errorf("learned %v", learned)
		}
		if got := j.aliases["www.ok.test"]; !slices.Equal(got, []string{"edge.cdn.test"}) {
			t.Errorf("learned along %q", got)
		}
		if want := []string{"www.ok.test allow rule resolved"}; !slices.Equal(recorded, want) {
			t.Errorf("recorded %q, want %q", recorded, want)
		}
	}
}

func TestWhatIsDeniedIsNotAsked(t *testing.T) {
	upstream := serve(t,
		func(dns.ResponseWriter, *dns.Msg) { t.Error("the name server was asked") })
	j, server := start(t,
		`{"defaultAction":"deny","egress":[{"action":"allow","target":"*.example.com"}]}`, upstream)
	answer := ask(t, "udp", server, "secret.example.org.", dns.TypeTXT)
	if answer.Rcode != dns.RcodeNameError || len(answer.IsEdns0().Option) != 1 {
		t.Errorf("got %s", answer)
	}
	if _, recorded := j.seen(); !slices.Equal(recorded,
		[]string{"secret.example.org deny default"}) {
		t.Errorf("recorded %q", recorded)
	}
	// A dot within a label is no border between labels, and no test needs everything at once.
	for name, kind := range map[string]uint16{`evil\.example.com.`: dns.TypeA,
		"www.example.com.": dns.TypeANY} {
		if answer := ask(t, "udp", server, name, kind); answer.Rcode != dns.RcodeRefused {
			t.Errorf("%s: got %s", name, answer)
		}
	}
}

func TestAnswersThatLeadToWhatIsDenied(t *testing.T) {
	const rules = `"egress":[{"action":"allow","target":"ok.test"},{"action":"deny","target":"*.evil.test"},{"action":"deny","target":"192.0.2.0/24"}]`
	for name, records := range map[string][]string{
		"a denied address": {"ok.test. 1 IN A 192.0.2.1"},
		"metadata":         {"ok.test. 1 IN A 169.254.169.254"},
		"the loopback":     {"ok.test. 1 IN A 127.0.0.1"},
		"a denied alias": {"ok.test. 1 IN CNAME x.evil.test.",
			"x.evil.test. 1 IN A 198.51.100.1"},
		"aliases in a circle": {"ok.test. 1 IN CNAME b.test.", "b.test. 1 IN CNAME ok.test.",
			"ok.test. 1 IN A 192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			upstream := serve(t, zone(t, records...))
			j, server := start(t, `{"defaultAction":"deny",`+rules+`}`, upstream)
			if answer := ask(t, "udp", server, "ok.test.",
				dns.TypeA); answer.Rcode != dns.RcodeRefused || len(answer.Answer) > 0 {
				t.Errorf("got %s", answer)
			}
			if learned, _ := j.seen(); len(learned) > 0 {
				t.Errorf("learned %v", learned)
			}
			_, server = start(t, `{"defaultAction":"deny","dryRun":true,`+rules+`}`, upstream)
			if answer := ask(t, "udp", server, "ok.test.",
				dns.TypeA); answer.Rcode != dns.RcodeSuccess || len(answer.Answer) == 0 {
				t.Errorf("in a dry run: got %s", answer)
			}
		})
	}
}

func TestNoAnswerWithoutItsAddresses(t *testing.T) {
	j, server := start(t, `{}`, serve(t, zone(t, "a.test. 1 IN A 192.0.2.1")))
	j.fail(errors.New("the kernel says no"))
	if answer := ask(t, "udp", server, "a.test.",
		dns.TypeA); answer.Rcode != dns.RcodeServerFailure || len(answer.Answer) > 0 {
		t.Errorf("got %s", answer)
	}
}

func TestAnotherServerIsAskedAndLongAnswersComeWhole(t *testing.T) {
	broken := serve(t, func(w dns.ResponseWriter, query *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(query, dns.RcodeServerFailure))
	})
	many := make([]string, 200)
	for i := range many {
		many[i] = "a.test. 60 IN A 192.0.2." +
			netip.AddrFrom4([4]byte{0, 0, 0, byte(i)}).String()[6:]
	}
	upstream := serve(t, overTCP(zone(t, many...)))
	_, server := start(t, `{}`, broken, upstream)
	if answer := ask(t, "tcp", server, "a.test.", dns.TypeA); len(answer.Answer) != len(many) {
		t.Errorf("%d answers, want %d", len(answer.Answer), len(many))
	}
	if answer := ask(t, "udp", server, "a.test.", dns.TypeA); !answer.Truncated {
		t.Error("an answer that does not fit is not marked so")
	}
}

func TestNameServers(t *testing.T) {
	for conf, want := range map[string]string{
		"nameserver 192.0.2.1\nnameserver 2001:db8::1\n# nameserver 192.0.2.9\nnameserver 192.0.2.2":         "[192.0.2.1:53 192.0.2.2:53]",
		"nameserver 127.0.0.11\noptions ndots:0\n# ExtServers: [192.0.2.1 host(192.0.2.2) host(127.0.0.53)]": "[192.0.2.1:53 192.0.2.2:53]",
		"nameserver 127.0.0.11\nsearch test": "[]",
	} {
		got, err := dnsproxy.NameServers(strings.NewReader(conf))
		if err != nil || strings.TrimSpace(strings.ReplaceAll(sprint(got), ",", "")) != want {
			t.Errorf("%q: got %v, %v, want %s", conf, got, err, want)
		}
	}
}

func sprint(servers []netip.AddrPort) string {
	var all []string
	for _, server := range servers {
		all = append(all, server.String())
	}
	return "[" + strings.Join(all, " ") + "]"
}
