package dnsproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	// ednsSize is the largest UDP answer that is asked for, in bytes: it fits into one packet everywhere.
	ednsSize = 1232
	// oneTry is how long one name server has to answer.
	oneTry = 1500 * time.Millisecond

	receiveBufferForce = syscall.SO_RCVBUFFORCE
	dnsPort            = 53
)

// ask puts the question of a query to the name servers, one after the other, until one has an answer.
func (p *Proxy) ask(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	question := new(dns.Msg)
	question.Question = query.Question
	question.RecursionDesired = true
	question.CheckingDisabled = query.CheckingDisabled
	edns := query.IsEdns0()
	question.SetEdns0(ednsSize, edns != nil && edns.Do())
	var failures error
	for ctx.Err() == nil {
		for _, server := range p.options.Upstream {
			question.Id = dns.Id()
			response, err := p.exchange(ctx, "udp", server, question)
			if err == nil && response.Truncated {
				response, err = p.exchange(ctx, "tcp", server, question)
			}
			if err == nil && (response.Rcode == dns.RcodeSuccess || response.Rcode == dns.RcodeNameError) {
				return response, nil
			}
			if err == nil {
				err = fmt.Errorf("%s answers %s", server, dns.RcodeToString[response.Rcode])
				if len(p.options.Upstream) == 1 {
					return nil, err // asking again gives the same
				}
			}
			failures = errors.Join(failures, err)
			if ctx.Err() != nil {
				break
			}
		}
		if len(p.options.Upstream) == 0 {
			return nil, errors.New("there is no name server")
		}
		if refused(failures) {
			break
		}
	}
	return nil, failures
}

// refused tells that asking the same servers once more is of no use: all of them were there.
func refused(failures error) bool {
	var timeout net.Error
	return !errors.As(failures, &timeout) || !timeout.Timeout()
}

func (p *Proxy) exchange(ctx context.Context, network string, server netip.AddrPort, question *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{
		Net:     network,
		Timeout: oneTry,
		Dialer:  &net.Dialer{Timeout: oneTry, Control: p.marked},
		UDPSize: ednsSize,
	}
	response, _, err := client.ExchangeContext(ctx, question, server.String())
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", server, err)
	}
	if len(response.Question) != 1 || !sameQuestion(response.Question[0], question.Question[0]) {
		return nil, fmt.Errorf("%s answers another question", server)
	}
	return response, nil
}

func sameQuestion(a, b dns.Question) bool {
	return strings.EqualFold(a.Name, b.Name) && a.Qtype == b.Qtype && a.Qclass == b.Qclass
}

func (p *Proxy) marked(_, _ string, conn syscall.RawConn) error {
	if p.options.Mark == 0 {
		return nil
	}
	var failure error
	err := conn.Control(func(fd uintptr) {
		failure = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_MARK, int(p.options.Mark))
	})
	return errors.Join(err, failure)
}

// NameServers reads the name servers of a resolv.conf that can be asked from inside a sandbox's network. Docker's own, 127.0.0.11,
// is not among them, because it asks others with packets that nothing tells from the sandbox's; those that it would ask are, where
// the file names them.
func NameServers(conf io.Reader) ([]netip.AddrPort, error) {
	var servers []netip.AddrPort
	add := func(text string) {
		addr, err := netip.ParseAddr(text)
		if err == nil && addr.Unmap().Is4() && !addr.IsLoopback() {
			servers = append(servers, netip.AddrPortFrom(addr.Unmap(), dnsPort))
		}
	}
	lines := bufio.NewScanner(conf)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if list, ok := strings.CutPrefix(line, "# ExtServers: ["); ok {
			for field := range strings.FieldsSeq(strings.TrimSuffix(list, "]")) {
				add(strings.TrimSuffix(strings.TrimPrefix(field, "host("), ")"))
			}
		}
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "nameserver" {
			add(fields[1])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the name servers: %w", err)
	}
	return servers, nil
}
