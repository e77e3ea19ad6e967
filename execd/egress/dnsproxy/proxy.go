// Package dnsproxy answers the sandbox's DNS queries: those for allowed names with what the real name servers say, all others at once
// with NXDOMAIN. The addresses of an answer may be reached before the answer leaves.
package dnsproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"

	"sandbox.internal/execd/egress/policy"
)

const (
	// atOnce bounds the queries that wait for name servers. More are answered with SERVFAIL, so that a flood of them costs no memory.
	atOnce = 1024
	// patience is how long a query is worked at; clients give up after five seconds and ask again.
	patience = 5 * time.Second
	// tcpIdle is how long a client's TCP connection may be silent.
	tcpIdle = 10 * time.Second
	// receiveBuffer holds bursts of queries, in bytes.
	receiveBuffer = 4 << 20
	// maxQuery is the largest UDP query, in bytes. Each that is worked at has a buffer of this size.
	maxQuery = 2048
	// binds is how often a port is looked for that is free for UDP and TCP.
	binds = 16
)

// Judge decides what may be asked and reached. Its methods are called by many goroutines.
type Judge interface {
	// Name decides a name in its normal form. With dryRun a denied name is answered all the same.
	Name(name string) (decision policy.Decision, dryRun bool)
	// Resolved decides an address that an allowed name resolved to.
	Resolved(addr netip.Addr) policy.Decision
	// Learn makes the addresses of an answer reachable, for as long as the answer holds, and returns when they are. An error means
	// that they are not.
	Learn(ctx context.Context, name string, addresses []netip.Addr, ttl time.Duration) error
	// Told hears how a query ended. An address decides when the name is allowed and none of its addresses is.
	Told(name string, decision policy.Decision, dryRun, resolved bool)
}

// Options configures a [Proxy].
type Options struct {
	Judge Judge
	// Upstream are the name servers to ask, in this order.
	Upstream []netip.AddrPort
	// Mark is the mark of the proxy's own packets, by which the wall lets them pass; 0 sets none.
	Mark   uint32
	Logger zerolog.Logger
}

// Proxy listens on the loopback.
type Proxy struct {
	options Options
	udp     net.PacketConn
	tcp     net.Listener
	slots   chan struct{}
	work    context.Context
}

// Listen opens a port on the loopback, the same for UDP and TCP, and serves nothing yet.
func Listen(ctx context.Context) (net.PacketConn, net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		return conn.Control(func(fd uintptr) {
			// A smaller buffer only loses queries of a burst, which clients repeat.
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, receiveBufferForce, receiveBuffer)
		})
	}}
	var failure error
	for range binds {
		udp, err := config.ListenPacket(ctx, "udp4", "127.0.0.1:0")
		if err != nil {
			return nil, nil, fmt.Errorf("listen for DNS: %w", err)
		}
		tcp, err := config.Listen(ctx, "tcp4", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp, nil
		}
		failure = errors.Join(err, udp.Close())
	}
	return nil, nil, fmt.Errorf("listen for DNS: %w", failure)
}

// New returns a proxy on the listeners of [Listen], which it owns from now on.
func New(udp net.PacketConn, tcp net.Listener, options Options) *Proxy {
	return &Proxy{options: options, udp: udp, tcp: tcp, slots: make(chan struct{}, atOnce)}
}

// Run serves until ctx ends, or returns why it cannot.
func (p *Proxy) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	p.work = work
	servers := []*dns.Server{
		{PacketConn: p.udp, Handler: p, UDPSize: maxQuery},
		{Listener: p.tcp, Handler: p, IdleTimeout: func() time.Duration { return tcpIdle }, MaxTCPQueries: -1},
	}
	failed := make(chan error, len(servers))
	var started, serving sync.WaitGroup
	for _, server := range servers {
		started.Add(1)
		server.NotifyStartedFunc = started.Done
		serving.Go(func() { failed <- server.ActivateAndServe() })
	}
	started.Wait()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve DNS: %w", err)
	}
	cancel()
	for _, server := range servers {
		if failure := server.Shutdown(); failure != nil && err == nil {
			p.options.Logger.Debug().Err(failure).Msg("DNS did not stop cleanly")
		}
	}
	serving.Wait()
	return err
}

// ServeDNS implements [dns.Handler].
func (p *Proxy) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	ctx, cancel := context.WithTimeout(p.work, patience)
	defer cancel()
	answer := p.answer(ctx, query)
	if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
		size := dns.MinMsgSize
		if edns := query.IsEdns0(); edns != nil {
			size = max(size, int(edns.UDPSize()))
		}
		answer.Truncate(size)
	}
	answer.Compress = true
	if err := w.WriteMsg(answer); err != nil {
		p.options.Logger.Debug().Err(err).Msg("a DNS answer was not sent")
	}
}

// answer decides a query and answers it.
func (p *Proxy) answer(ctx context.Context, query *dns.Msg) *dns.Msg {
	if query.Response || query.Opcode != dns.OpcodeQuery || len(query.Question) != 1 {
		return refuse(query, dns.RcodeNotImplemented, "")
	}
	question := query.Question[0]
	name, ok := policy.NormalName(question.Name)
	if !ok || question.Qclass != dns.ClassINET || question.Qtype == dns.TypeAXFR || question.Qtype == dns.TypeIXFR || question.Qtype == dns.TypeANY {
		return refuse(query, dns.RcodeRefused, "this question is not answered")
	}
	decision, dryRun := p.options.Judge.Name(name)
	if !decision.Allowed() && !dryRun {
		p.options.Judge.Told(name, decision, false, false)
		return refuse(query, dns.RcodeNameError, "denied by the egress policy")
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		return refuse(query, dns.RcodeServerFailure, "")
	}
	response, err := p.ask(ctx, query)
	if err != nil {
		p.options.Logger.Debug().Err(err).Str("name", name).Msg("the name servers do not answer")
		p.options.Judge.Told(name, decision, !decision.Allowed(), false)
		return refuse(query, dns.RcodeServerFailure, "")
	}
	kept := p.filter(name, question, response, dryRun)
	if !kept.decision.Allowed() {
		p.options.Judge.Told(name, kept.decision, false, true)
		return refuse(query, dns.RcodeRefused, "denied by the egress policy")
	}
	if len(kept.addresses) > 0 {
		if err := p.options.Judge.Learn(ctx, name, kept.addresses, kept.ttl); err != nil {
			p.options.Logger.Warn().Err(err).Str("name", name).Msg("addresses are not reachable, so their name is not answered")
			return refuse(query, dns.RcodeServerFailure, "")
		}
	}
	p.options.Judge.Told(name, decision, dryRun && !decision.Allowed(), response.Rcode == dns.RcodeSuccess && len(response.Answer) > 0)
	return kept.reply(query, response)
}

// refuse makes an answer without records. The reason goes along where the client understands it (RFC 8914).
func refuse(query *dns.Msg, rcode int, reason string) *dns.Msg {
	answer := new(dns.Msg).SetRcode(query, rcode)
	answer.RecursionAvailable = true
	if query.IsEdns0() != nil {
		answer.SetEdns0(ednsSize, false)
		if reason != "" {
			edns := answer.IsEdns0()
			edns.Option = append(edns.Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: reason})
		}
	}
	return answer
}
