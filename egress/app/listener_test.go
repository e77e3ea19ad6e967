package app

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"sandbox.internal/test/wait"
)

// TestConnectionsToTheAPIAreBounded: those of the sandbox, of one other address and of all, each
// apart from the others.
func TestConnectionsToTheAPIAreBounded(t *testing.T) {
	sandbox := netip.MustParseAddr("127.0.0.9")
	for name, c := range map[string]struct {
		own     func(netip.Addr) bool
		sources func(i int) netip.Addr
		want    int
	}{
		"the sandbox": {func(a netip.Addr) bool { return a == sandbox }, func(int) netip.Addr { return sandbox }, maxOfSandbox},
		"a neighbour": {func(netip.Addr) bool { return false }, func(int) netip.Addr { return netip.MustParseAddr("192.0.2.1") }, maxOfOneSource},
		"all": {func(netip.Addr) bool { return false }, func(i int) netip.Addr {
			return netip.AddrFrom4([4]byte{192, 0, 2, byte(i / maxOfOneSource)})
		}, maxConnections},
	} {
		t.Run(name, func(t *testing.T) {
			pipes := &pipes{accepted: make(chan net.Conn)}
			l := newBoundedListener(pipes, func() func(netip.Addr) bool { return c.own })
			accepted, done := make(chan net.Conn), make(chan struct{})
			go func() {
				defer close(done)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					accepted <- conn
				}
			}()
			var held []net.Conn
			connect := func(from netip.Addr) bool {
				conn := pipes.connect(t, from, accepted)
				if conn != nil {
					held = append(held, conn)
				}
				return conn != nil
			}
			for i := range c.want + 5 {
				if got, want := connect(c.sources(i)), i < c.want; got != want {
					t.Fatalf("connection %d is held: %v, want %v", i, got, want)
				}
			}
			// A client from elsewhere is let in, unless there are too many of all.
			if name != "all" && !connect(netip.MustParseAddr("198.51.100.7")) {
				t.Error("another source is refused")
			}
			_, _ = held[0].Close(), held[0].Close()
			for i := range 2 {
				if got, want := connect(c.sources(0)), i == 0; got != want {
					t.Errorf("connection %d after one has ended is held: %v, want %v", i, got, want)
				}
			}
			close(pipes.accepted)
			wait.For(t, "the end of the listener", done)
			for _, conn := range held {
				conn.Close()
			}
			if len(l.from) != 0 || l.all != 0 {
				t.Errorf("without connections %v and %d are counted", l.from, l.all)
			}
		})
	}
}

// pipes is a listener whose clients have any address.
type pipes struct{ accepted chan net.Conn }

func (p *pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.accepted
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// connect returns the connection from the address as it was accepted, nil when it was closed.
func (p *pipes) connect(t *testing.T, from netip.Addr, accepted <-chan net.Conn) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	p.accepted <- addressed{server, net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 1024))}
	ended := make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		ended <- err
	}()
	select {
	case conn := <-accepted:
		return conn
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		return nil
	}
}

type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }
