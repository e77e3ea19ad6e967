package localengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// outsides counts the ranges of addresses that were taken.
var outsides atomic.Int32

// NewOutside makes a network namespace that the host reaches by way of a gateway, as sandboxes
// reach nothing that is behind a veth pair otherwise, with the servers of the tests. It ends with
// the test.
func NewOutside(t *testing.T) conformance.Outside {
	t.Helper()
	n, run := int(outsides.Add(1)), byte(os.Getpid()%250)
	if n > 30 {
		t.Fatal("the ranges of addresses of this run are used up")
	}
	link := netip.AddrFrom4([4]byte{198, 18, run, byte(4 * n)}) // /30: the host's end, and the gateway
	servers := netip.AddrFrom4([4]byte{198, 19, run, byte(8 * n)})
	host, gateway := link.Next(), link.Next().Next()
	allowed := servers.Next()
	denied := allowed.Next()
	names := denied.Next()
	namespace, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Close() })                 // the veth pair goes with it
	outer, inner := fmt.Sprintf("%so%d", linkPrefix(), n), "up" // see hostAddresses
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: outer}, PeerName: inner, PeerNamespace: netlink.NsFd(int(namespace.Fd()))}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(pair) })
	err = errors.Join(
		give(outer, netip.PrefixFrom(host, 30)),
		netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(servers, 29)), Gw: gateway.AsSlice()}),
	)
	if err != nil {
		t.Fatal(err)
	}
	err = inNamespace(namespace, func() error {
		return errors.Join(
			give(inner, netip.PrefixFrom(gateway, 30)),
			give("lo", netip.PrefixFrom(allowed, 32), netip.PrefixFrom(denied, 32), netip.PrefixFrom(names, 32)),
			netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: host.AsSlice()}),
			serveName(t, allowed, "allowed"),
			serveName(t, denied, "denied"),
			serveNames(t, names, map[string]netip.Addr{"allowed.test.": allowed, "denied.test.": denied}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	return conformance.Outside{Allowed: allowed.String(), Denied: denied.String(), NameServer: names.String()}
}

// serveName answers every request of HTTP with a name.
func serveName(t *testing.T, address netip.Addr, name string) error {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(address, 80).String())
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(name))
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := wait.For(t, "the end of the server", ended); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return nil
}

// serveNames is a name server that has those names and no others.
func serveNames(t *testing.T, address netip.Addr, names map[string]netip.Addr) error {
	connection, err := net.ListenPacket("udp4", netip.AddrPortFrom(address, 53).String())
	if err != nil {
		return err
	}
	answer := func(w dns.ResponseWriter, question *dns.Msg) {
		reply := new(dns.Msg).SetReply(question)
		address, known := names[question.Question[0].Name]
		switch {
		case !known:
			reply.Rcode = dns.RcodeNameError
		case question.Question[0].Qtype == dns.TypeA:
			reply.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: question.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: address.AsSlice(),
			}}
		}
		_ = w.WriteMsg(reply) // a client that does not get it asks again
	}
	server := &dns.Server{PacketConn: connection, Handler: dns.HandlerFunc(answer)}
	ended := make(chan error, 1)
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { ended <- server.ActivateAndServe() }()
	wait.For(t, "the start of the server", started)
	t.Cleanup(func() {
		if err := errors.Join(server.ShutdownContext(context.Background()), wait.For(t, "the end of the server", ended)); err != nil {
			t.Error(err)
		}
	})
	return nil
}

// give gives addresses to an interface and switches it on.
func give(name string, addresses ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// newNamespace makes a network namespace.
func newNamespace() (namespace *os.File, err error) {
	entered := onOtherThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		namespace, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return namespace, entered
}

// inNamespace calls do in a network namespace; sockets that it opens stay there.
func inNamespace(namespace *os.File, do func() error) error {
	return onOtherThread(func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return do()
	})
}

// onOtherThread calls do on a thread that ends with it, and is not the process's first.
func onOtherThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err := onOtherThread(do)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- do()
	}()
	return <-done
}
