package egress

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// neighbour is what sandboxes of the bench reach: servers on the engine's bridge.
type neighbour struct {
	// answers every name below bench.: n1.bench. has the address 10.99.0.1, and so on
	dns   netip.AddrPort
	echo  netip.AddrPort // TCP: sends back what it gets
	sink  netip.AddrPort // TCP: reads to the end, and sends one byte then
	close func()
}

func newNeighbour(on netip.Addr) (*neighbour, error) {
	n := &neighbour{}
	var closers []io.Closer
	n.close = func() {
		for _, c := range closers {
			c.Close() // whatever it says, the run is over
		}
	}
	packets, err := net.ListenPacket("udp4", netip.AddrPortFrom(on, 0).String())
	if err != nil {
		return nil, err
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(answer)}
	go server.ActivateAndServe() // until its socket is closed
	closers = append(closers, packets)
	n.dns = netip.MustParseAddrPort(packets.LocalAddr().String())
	for _, s := range []struct {
		at    *netip.AddrPort
		serve func(net.Conn)
	}{{&n.echo, echo}, {&n.sink, drainAll}} {
		listener, err := net.Listen("tcp4", netip.AddrPortFrom(on, 0).String())
		if err != nil {
			n.close()
			return nil, err
		}
		closers = append(closers, listener)
		*s.at = netip.MustParseAddrPort(listener.Addr().String())
		go accept(listener, s.serve)
	}
	return n, nil
}

// accept serves connections until the listener is closed.
func accept(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// echo ends when the client leaves.
func echo(c net.Conn) { io.Copy(c, c) }

func drainAll(c net.Conn) {
	buffer := make([]byte, 256<<10)
	for {
		if _, err := c.Read(buffer); err != nil {
			if errors.Is(err, io.EOF) {
				c.Write([]byte{1}) // the client notices when it is missing
			}
			return
		}
	}
}

// namedNetwork has the addresses of all names.
const namedNetwork = "10.99.0.0/16"

// addressOf is the address of the name n<number>.bench.
func addressOf(number uint32) net.IP {
	ip := net.IPv4(10, 99, 0, 0).To4()
	binary.BigEndian.PutUint16(ip[2:], uint16(number))
	return ip
}

func answer(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	name := query.Question[0].Name
	var number uint32
	for _, digit := range strings.TrimSuffix(strings.TrimPrefix(strings.ToLower(name), "n"),
		".bench.") {
		number = number*10 + uint32(digit-'0')
	}
	if query.Question[0].Qtype == dns.TypeA {
		reply.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA,
			Class: dns.ClassINET, Ttl: 60}, A: addressOf(number)}}
	}
	w.WriteMsg(reply) // the client notices when it is missing
}
