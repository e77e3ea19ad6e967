package dnsproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	// ednsSize is the largest UDP answer that is asked for, in bytes: it fits into one packet
	// everywhere.
	ednsSize = 1232
	// oneTry is how long one name server has to answer.
	oneTry = 1500 * time.Millisecond

	receiveBufferForce = syscall.SO_RCVBUFFORCE
	dnsPort            = 53
)

// ask puts the question of a query to the name servers, one after the other, until one has an
// answer.
func (p *Proxy) ask(ctx context.Context, q *query, size int) (found, error) {
	question := new(dns.Msg)
	question.Question = q.Question
	question.RecursionDesired = true
	question.CheckingDisabled = q.CheckingDisabled
	edns := q.IsEdns0()
	question.SetEdns0(ednsSize, edns != nil && edns.Do())
	data, err := question.Pack()
	if err != nil {
		return found{}, fmt.Errorf("write the question: %w", err)
	}
	var failures error
	for ctx.Err() == nil {
		for _, server := range p.options.Upstream {
			result, err := p.fetch(ctx, server, data, q, size)
			if err == nil {
				return result, nil
			}
			if rcode := (rcodeError{}); errors.As(err, &rcode) && len(p.options.Upstream) == 1 {
				return found{}, err // asking again gives the same
			}
			failures = errors.Join(failures, err)
			if ctx.Err() != nil {
				break
			}
		}
		if len(p.options.Upstream) == 0 {
			return found{}, errors.New("there is no name server")
		}
		if refused(failures) {
			break
		}
	}
	return found{}, failures
}

// refused reports that another query to the same servers is of no use: all of them answered.
func refused(failures error) bool {
	var timeout net.Error
	return !errors.As(failures, &timeout) || !timeout.Timeout()
}

// rcodeError is an answer that says that there is none.
type rcodeError struct {
	server netip.AddrPort
	rcode  int
}

func (e rcodeError) Error() string {
	return fmt.Sprintf("%s answers %s", e.server, dns.RcodeToString[e.rcode])
}

// fetch asks one name server, and takes its answer apart.
func (p *Proxy) fetch(ctx context.Context, server netip.AddrPort, question []byte, q *query,
	size int) (found, error) {
	raw, head, err := p.exchange(ctx, "udp4", server, question)
	if err == nil && head.bits&bitTruncated != 0 {
		select {
		case p.long <- struct{}{}:
			defer func() { <-p.long }()
		case <-ctx.Done():
			return found{}, ctx.Err()
		}
		raw, head, err = p.exchange(ctx, "tcp4", server, question)
	}
	if err != nil {
		return found{}, fmt.Errorf("ask %s: %w", server, err)
	}
	if rcode := int(head.bits & maskRcode); rcode != dns.RcodeSuccess &&
		rcode != dns.RcodeNameError {
		return found{}, rcodeError{server, rcode}
	}
	return p.sanitize(ctx, q, raw, head, size)
}

// exchange returns a name server's answer to the question as it came. What answers another question
// is passed over.
func (p *Proxy) exchange(ctx context.Context, network string, server netip.AddrPort,
	question []byte) ([]byte, header, error) {
	deadline := time.Now().Add(oneTry)
	conn, err := (&net.Dialer{Deadline: deadline, Control: p.marked}).DialContext(ctx, network,
		server.String())
	if err != nil {
		return nil, header{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	id := dns.Id()
	data := append([]byte(nil), question...)
	binary.BigEndian.PutUint16(data, id)
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, header{}, err
	}
	var read func() ([]byte, error)
	if network == "tcp4" {
		err = writeMessage(conn, deadline, data)
		read = func() ([]byte, error) { return readMessage(conn, deadline, dns.MaxMsgSize) }
	} else {
		_, err = conn.Write(data)
		buffer := make([]byte, ednsSize)
		read = func() ([]byte, error) {
			n, err := conn.Read(buffer)
			return buffer[:n], err
		}
	}
	for err == nil && ctx.Err() == nil {
		var raw []byte
		if raw, err = read(); err != nil {
			break
		}
		head, ok := readHeader(raw)
		if ok && head.id == id && head.bits&bitResponse != 0 && sameQuestion(raw, head, data) {
			return raw, head, nil
		}
	}
	return nil, header{}, errors.Join(err, ctx.Err())
}

func sameQuestion(raw []byte, head header, asked []byte) bool {
	a, _, err := readQuestion(raw)
	b, _, failure := readQuestion(asked)
	return err == nil && failure == nil && head.questions == 1 &&
		strings.EqualFold(a.Name, b.Name) && a.Qtype == b.Qtype && a.Qclass == b.Qclass
}

func (p *Proxy) marked(_, _ string, conn syscall.RawConn) error {
	if p.options.Mark == 0 {
		return nil
	}
	var failure error
	err := conn.Control(func(fd uintptr) {
		failure = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_MARK,
			int(p.options.Mark))
	})
	return errors.Join(err, failure)
}
