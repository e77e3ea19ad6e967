package app_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/miekg/dns"

	"sandbox.internal/test/wait"
)

// outside is a Docker network with servers of the test's own on addresses of its bridge.
type outside struct {
	network string
	dns     netip.AddrPort // the name server that the sidecar asks
	rogue   netip.AddrPort // another name server
	asked   *atomic.Int64  // how many questions the other one got
	web1    netip.AddrPort
	web2    netip.AddrPort
	echo    netip.AddrPort // answers each line with the same line
}

// newOutside makes the network and starts the servers. The zone .test is on the name server:
//
//	web1 web2 echo x.wild   the servers, x.wild being web1
//	alias                   an alias of web1
//	rebind                  web2, which policies deny by its address
//	meta loop               169.254.169.254 and 127.0.0.1
//	nN                      10.99.x.y, one address for each number
//	gone                    does not exist
//	slow                    and everything that begins so is not answered
func newOutside(t *testing.T) *outside {
	t.Helper()
	id := uuid.NewString()[:8]
	o := &outside{network: "egress-test-" + id, asked: new(atomic.Int64)}
	bridge := "egt-" + id
	command(t, "docker", "network", "create", "-o", "com.docker.network.bridge.name="+bridge, o.network)
	t.Cleanup(func() { cleanUp(t, "docker", "network", "rm", o.network) })
	subnet := netip.MustParsePrefix(command(t, "docker", "network", "inspect", "-f", "{{(index .IPAM.Config 0).Subnet}}", o.network))
	last := lastOf(subnet)
	var addrs []netip.Addr
	for range 5 {
		last = last.Prev()
		addrs = append(addrs, last)
		command(t, "ip", "addr", "add", fmt.Sprintf("%s/%d", last, subnet.Bits()), "dev", bridge)
	}
	o.web1, o.web2 = o.serveWeb(t, addrs[2], "web1"), o.serveWeb(t, addrs[3], "web2")
	o.echo = o.serveEcho(t, addrs[4])
	o.dns = o.serveDNS(t, addrs[0], o.zone)
	o.rogue = o.serveDNS(t, addrs[1], func(name string) []string {
		o.asked.Add(1)
		return []string{"A " + o.web2.Addr().String()}
	})
	return o
}

func lastOf(subnet netip.Prefix) netip.Addr {
	bytes := subnet.Addr().As4()
	for bit := subnet.Bits(); bit < 32; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(bytes)
}

// zone returns the records of a name, nil when there is none.
func (o *outside) zone(name string) []string {
	host, ok := strings.CutSuffix(name, ".test.")
	if !ok {
		return nil
	}
	if n, err := strconv.Atoi(strings.TrimPrefix(host, "n")); err == nil && host[0] == 'n' {
		return []string{fmt.Sprintf("A 10.99.%d.%d", n/250, n%250+1)}
	}
	switch host {
	case "web1", "x.wild":
		return []string{"A " + o.web1.Addr().String()}
	case "web2", "rebind":
		return []string{"A " + o.web2.Addr().String(), "AAAA 2001:db8::2"}
	case "echo":
		return []string{"A " + o.echo.Addr().String()}
	case "alias":
		return []string{"CNAME web1.test."}
	case "meta":
		return []string{"A 169.254.169.254"}
	case "loop":
		return []string{"A 127.0.0.1"}
	}
	return nil
}

// expand puts the servers' addresses into a text: $web1, $web1ip and so on.
func (o *outside) expand(text string) string {
	return strings.NewReplacer(
		"$web1ip", o.web1.Addr().String(), "$web2ip", o.web2.Addr().String(), "$echoip", o.echo.Addr().String(),
		"$rogueip", o.rogue.Addr().String(), "$dnsip", o.dns.Addr().String(),
		"$port1", strconv.Itoa(int(o.web1.Port())), "$port2", strconv.Itoa(int(o.web2.Port())), "$echoport", strconv.Itoa(int(o.echo.Port())),
	).Replace(text)
}

func listen(t *testing.T, addr netip.Addr, port uint16) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (o *outside) serveWeb(t *testing.T, addr netip.Addr, text string) netip.AddrPort {
	t.Helper()
	l := listen(t, addr, 0)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "this is "+text) })}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), wait.For(t, "the end of the server", done)); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return addrOf(l)
}

func (o *outside) serveEcho(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	l := listen(t, addr, 0)
	var connections sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	connections.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			connections.Go(func() {
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					fmt.Fprintln(conn, lines.Text())
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		connections.Wait()
	})
	return addrOf(l)
}

func (o *outside) serveDNS(t *testing.T, addr netip.Addr, zone func(string) []string) netip.AddrPort {
	t.Helper()
	const port = 53
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		question := query.Question[0]
		answer := new(dns.Msg).SetReply(query)
		name := strings.ToLower(question.Name)
		if strings.HasPrefix(name, "slow") {
			return
		}
		records := zone(name)
		if records == nil {
			answer.Rcode = dns.RcodeNameError
		}
		for _, record := range records {
			rr, err := dns.NewRR(fmt.Sprintf("%s 1 IN %s", name, record))
			if err != nil {
				t.Error(err)
				return
			}
			if target, ok := strings.CutPrefix(record, "CNAME "); ok {
				answer.Answer = append(answer.Answer, rr)
				rr, err = dns.NewRR(fmt.Sprintf("%s 1 IN %s", target, zone(target)[0]))
				if err != nil {
					t.Error(err)
					return
				}
			}
			if rr.Header().Rrtype == question.Qtype {
				answer.Answer = append(answer.Answer, rr)
			}
		}
		_ = w.WriteMsg(answer) // whoever asked may be gone
	})
	udp, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		t.Fatal(err)
	}
	tcp := listen(t, addr, port)
	var serving sync.WaitGroup
	for _, server := range []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		serving.Go(func() {
			if err := server.ActivateAndServe(); err != nil {
				t.Error(err)
			}
		})
		wait.For(t, "the start of the server", started)
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	return netip.AddrPortFrom(addr, port)
}
