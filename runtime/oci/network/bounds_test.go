package network

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/rs/zerolog"

	"sandbox.internal/test/wait"
)

// receiver is a server outside that collects where datagrams come from.
type receiver struct {
	net.PacketConn
	mu      sync.Mutex
	sources map[string]int
}

func receive(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{sources: map[string]int{}}
	err := in(outside, func() (err error) {
		r.PacketConn, err = net.ListenPacket("udp4", at(outsideAddress, 0))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		buffer := make([]byte, 100)
		for {
			_, source, err := r.ReadFrom(buffer)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.sources[source.String()]++
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() { _ = r.Close(); done.Wait() })
	return r
}

// got returns how many sources have sent, and how many datagrams.
func (r *receiver) got() (sources, datagrams int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, some := range r.sources {
		datagrams += some
	}
	return len(r.sources), datagrams
}

// flows sends a datagram from each of many sockets of the namespace, which stay open.
func flows(t *testing.T, namespace string, to net.Addr, many int) []net.Conn {
	t.Helper()
	var all []net.Conn
	err := in(namespace, func() error {
		for range many {
			conn, err := net.Dial("udp4", to.String())
			if err != nil {
				return err
			}
			all = append(all, conn)
			if _, err := conn.Write([]byte(".")); err != nil {
				return err
			}
		}
		return nil
	})
	t.Cleanup(func() {
		for _, conn := range all {
			_ = conn.Close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFlowsAreBounded: a container that has begun as many connections as it may begins no more, and
// others do.
func TestFlowsAreBounded(t *testing.T) {
	const most = 50
	o := options(t, "bound0")
	o.flows = most
	n := openNetwork(t, o)
	a, b := startContainer(t, n, "a", netip.Addr{}), startContainer(t, n, "b", netip.Addr{})
	r := receive(t)

	// A connection counts once, however much it sends before it is answered.
	single := flows(t, a.ns, r.LocalAddr(), 1)[0]
	for range 4 * most {
		if _, err := single.Write([]byte(".")); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "all of one connection arrives", func() bool { _, d := r.got(); return d == 4*most+1 })

	flows(t, a.ns, r.LocalAddr(), 3*most)
	wait.Until(t, "what is within the bound arrives", func() bool { s, _ := r.got(); return s == most })
	wantSilence(t, a.ns, at(outsideAddress, outsidePort))
	if s, _ := r.got(); s != most {
		t.Errorf("%d connections were made, the bound is %d", s, most)
	}
	wait.Until(t, "the container counts as full for a moment", func() bool {
		flows(t, a.ns, r.LocalAddr(), 1)
		return elements(t, n, fullSet) == 1
	})
	if _, err := single.Write([]byte(".")); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a connection that was made goes on", func() bool { _, d := r.got(); return d == 4*most+1+most })
	wantAnswer(t, b.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	wantAnswer(t, outside, at(hostAddress, a.Ports[containerPort]), "a "+outsideAddress)

	// Once its connections are over it makes others.
	if err := forgetFlows(func(x netip.Addr) bool { return x == a.Address }); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, a.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	flows(t, a.ns, r.LocalAddr(), 1)
	flows(t, b.ns, r.LocalAddr(), 1)
	if got := elements(t, n, flowsSet); got != 2 {
		t.Errorf("the connections of %d containers are counted, want 2", got)
	}
	if err := n.Detach("a"); err != nil {
		t.Fatal(err)
	}
	if got := elements(t, n, flowsSet); got != 1 {
		t.Errorf("after Detach the connections of %d containers are counted, want 1", got)
	}
}

// TestMostFlows derives the bound from that of the host.
func TestMostFlows(t *testing.T) {
	n := openNetwork(t, options(t, "most0"))
	text, err := readSysctl("netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	var all uint32
	if _, err := fmt.Sscan(text, &all); err != nil {
		t.Fatal(err)
	}
	if want := min(max(all/16, 4096), 16384); n.filter.flows != want {
		t.Errorf("of %d connections a container has %d, want %d", all, n.filter.flows, want)
	}
}

// TestFlowsAreNotCounted: a kernel that does not know the expression is no reason not to start, and
// the log has a warning.
func TestFlowsAreNotCounted(t *testing.T) {
	var log syncBuffer
	o := options(t, "uncounted0")
	o.countOver = func(uint32) expr.Any { return &expr.Lookup{SourceRegister: 1, SetName: "unknown"} } // ENOENT
	o.Logger = zerolog.New(&log)
	n := openNetwork(t, o)
	c := startContainer(t, n, "c", netip.Addr{})
	wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	removeTable(t, o.Bridge)
	wait.Until(t, "the table is made again", func() bool { return complete(n) })
	wantAnswer(t, c.ns, at(outsideAddress, outsidePort), "outside "+hostAddress)
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(log.String(), "nft_connlimit"); got != 1 {
		t.Errorf("%d warnings, want 1:\n%s", got, log.String())
	}
}

// syncBuffer is a buffer that several goroutines may write to.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
