package dnsproxy

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// datagram reads one UDP query and answers it. A query for a name server is answered by a goroutine
// of its own; the others are not worth one.
func (p *Proxy) datagram(ctx context.Context, buffer []byte) error {
	n, client, err := p.udp.ReadFromUDPAddrPort(buffer)
	if err != nil {
		return err
	}
	q, answer := p.read(buffer[:n])
	if q != nil {
		select {
		case p.slots <- struct{}{}:
			p.working.Go(func() {
				defer func() { <-p.slots }()
				p.send(client, p.resolve(ctx, q, q.datagramSize()))
			})
			return nil
		default:
			answer = refuse(q.Msg, dns.RcodeServerFailure, "")
		}
	}
	p.send(client, answer)
	return nil
}

func (p *Proxy) send(client netip.AddrPort, answer []byte) {
	if answer == nil {
		return
	}
	if _, err := p.udp.WriteToUDPAddrPort(answer, client); err != nil {
		p.options.Logger.Debug().Err(err).Msg("cannot send a DNS response")
	}
}

// accept takes one TCP connection.
func (p *Proxy) accept(ctx context.Context) error {
	conn, err := p.tcp.AcceptTCP()
	if err != nil {
		return err
	}
	select {
	case p.connections <- struct{}{}:
		p.working.Go(func() {
			defer func() { <-p.connections }()
			p.serveConnection(ctx, conn)
		})
	default:
		_ = conn.SetLinger(0) // nothing of it stays in the kernel
		_ = conn.Close()
	}
	return nil
}

// serveConnection answers the queries of a connection, one after the other.
func (p *Proxy) serveConnection(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for range maxPerConnection {
		data, err := readMessage(conn, time.Now().Add(tcpIdle), maxQuery)
		if err != nil {
			return
		}
		q, answer := p.read(data)
		if q != nil {
			select {
			case p.slots <- struct{}{}:
				answer = p.resolve(ctx, q, dns.MaxMsgSize)
				<-p.slots
			default:
				answer = refuse(q.Msg, dns.RcodeServerFailure, "")
			}
		}
		if answer == nil || writeMessage(conn, time.Now().Add(tcpSend), answer) != nil {
			return
		}
	}
}

// readMessage reads a message behind its length (RFC 1035, 4.2.2). One that is announced longer
// than the limit is an error, and nothing is set aside for it.
func readMessage(conn net.Conn, deadline time.Time, limit int) ([]byte, error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	announced := int(binary.BigEndian.Uint16(length[:]))
	if announced > limit {
		return nil, dns.ErrBuf
	}
	data := make([]byte, announced)
	_, err := io.ReadFull(conn, data)
	return data, err
}

func writeMessage(conn net.Conn, deadline time.Time, data []byte) error {
	if err := conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := conn.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(data)),
		uint16(len(data))), data...))
	return err
}
