package dnsproxy_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sandbox.internal/egress/dnsproxy"
	"sandbox.internal/test/wait"
)

func dial(t *testing.T, server string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp4", server)
	if err != nil {
		t.Fatal(err)
	}
	return prepared(t, conn)
}

func prepared(t *testing.T, conn net.Conn) net.Conn {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// prefixed is a message behind its length.
func prefixed(t *testing.T, name string) []byte {
	t.Helper()
	data, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...)
}

// answers reports whether a connection is answered.
func answers(t *testing.T, conn net.Conn) bool {
	t.Helper()
	if _, err := conn.Write(prefixed(t, "denied.test.")); err != nil {
		return false
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return false
	}
	_, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(length[:])))
	return err == nil
}

func TestConnectionsAreBounded(t *testing.T) {
	_, server := start(t, `{"defaultAction":"deny"}`)
	held := 0
	for range dnsproxy.MaxConnections + 50 {
		// One after the other, so that each has been taken or closed before the next one comes.
		conn, err := net.Dial("tcp4", server)
		switch {
		case errors.Is(err, syscall.ECONNRESET): // closed already
		case err != nil:
			t.Fatal(err)
		case answers(t, prepared(t, conn)):
			held++
		}
	}
	if held != dnsproxy.MaxConnections {
		t.Errorf("%d connections are held, want %d", held, dnsproxy.MaxConnections)
	}
	if answer := ask(t, "udp", server, "denied.test.",
		dns.TypeA); answer.Rcode != dns.RcodeNameError {
		t.Errorf("over UDP: %s", answer)
	}
}

func TestQueriesOfAConnectionAreBounded(t *testing.T) {
	_, server := start(t, `{"defaultAction":"deny"}`)
	conn := dial(t, server)
	answered := 0
	for answered <= dnsproxy.MaxPerConnection && answers(t, conn) {
		answered++
	}
	if answered != dnsproxy.MaxPerConnection {
		t.Errorf("%d queries are answered, want %d", answered, dnsproxy.MaxPerConnection)
	}
}

func TestAnnouncedLengthIsBounded(t *testing.T) {
	_, server := start(t, `{"defaultAction":"deny"}`)
	for _, length := range []uint16{dnsproxy.MaxQuery + 1, 65535} {
		conn := dial(t, server)
		if _, err := conn.Write(binary.BigEndian.AppendUint16(nil, length)); err != nil {
			t.Fatal(err)
		}
		// Closed, and not at the end of the time that a query may take.
		if err := conn.SetReadDeadline(time.Now().Add(dnsproxy.TCPIdle / 2)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
			t.Errorf("a query of %d bytes is announced: %d bytes, %v, want the connection closed",
				length, n, err)
		}
	}
	if answer := ask(t, "tcp", server, "denied.test.",
		dns.TypeA); answer.Rcode != dns.RcodeNameError {
		t.Errorf("a query of usual length: %s", answer)
	}
}

// TestAddressesOfAnAnswerAreBounded: each that is passed on is learned, and takes memory in the
// egress daemon and in the kernel.
func TestAddressesOfAnAnswerAreBounded(t *testing.T) {
	var records []string
	for i := range 2 * dnsproxy.MaxAddresses {
		records = append(records, fmt.Sprintf("a.test. 60 IN A 198.51.%d.%d", i/256, i%256))
	}
	upstream := serve(t, overTCP(zone(t, records...)))
	j, server := start(t, `{}`, upstream)
	answer := ask(t, "tcp", server, "a.test.", dns.TypeA)
	learned, _ := j.seen()
	if len(answer.Answer) != dnsproxy.MaxAddresses ||
		len(learned["a.test"]) != dnsproxy.MaxAddresses {
		t.Errorf("%d addresses are answered and %d learned, want %d", len(answer.Answer),
			len(learned["a.test"]), dnsproxy.MaxAddresses)
	}
}

// TestAnswersToOtherQuestionsArePassedOver: a name server's late answers do not take the place of
// the one that is waited for.
func TestAnswersToOtherQuestionsArePassedOver(t *testing.T) {
	upstream := serve(t, func(w dns.ResponseWriter, query *dns.Msg) {
		for _, change := range []func(*dns.Msg){
			func(m *dns.Msg) { m.Id++ },
			func(m *dns.Msg) { m.Response = false },
			func(m *dns.Msg) { m.Question[0].Name = "b.test." },
			func(m *dns.Msg) {},
		} {
			answer := new(dns.Msg).SetReply(query)
			answer.Question = slices.Clone(answer.Question)
			address := "192.0.2.66"
			if change(answer); answer.Id == query.Id && answer.Response &&
				answer.Question[0] == query.Question[0] {
				address = "192.0.2.1"
			}
			record, err := dns.NewRR("a.test. 60 IN A " + address)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Answer = []dns.RR{record}
			_ = w.WriteMsg(answer)
		}
	})
	_, server := start(t, `{}`, upstream)
	if got := texts(ask(t, "udp", server, "a.test.", dns.TypeA).Answer); !slices.Equal(got,
		[]string{"a.test. 60 IN A 192.0.2.1"}) {
		t.Errorf("got %q", got)
	}
}
