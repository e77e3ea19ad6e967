package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sandbox.internal/internal/nft"
	"sandbox.internal/test/wait"
)

// acceptAt returns the server's ends of connections to a port of the namespace, in their order; ""
// is this one.
func acceptAt(t *testing.T, namespace string, port int) <-chan net.Conn {
	t.Helper()
	var listener net.Listener
	if namespace == "" {
		namespace = "/proc/self/ns/net"
	}
	err := in(namespace, func() (err error) { listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", port)); return err })
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		for conn := range accepted {
			_ = conn.Close()
		}
	})
	return accepted
}

// link is a connection, with both of its ends.
type link struct{ client, server net.Conn }

// connectTo makes a connection from the namespace. It is reset after the test: its end may not
// reach the other side.
func connectTo(t *testing.T, accepted <-chan net.Conn, namespace, address string) link {
	t.Helper()
	var l link
	err := in(namespace, func() (err error) { l.client, err = net.DialTimeout("tcp4", address, wait.Patience()); return err })
	if err != nil {
		t.Fatal(err)
	}
	l.server = wait.For(t, "the connection", accepted)
	t.Cleanup(func() {
		for _, end := range []net.Conn{l.client, l.server} {
			_ = end.(*net.TCPConn).SetLinger(0)
			_ = end.Close()
		}
	})
	return l
}

// passes reports whether what one end sends arrives at the other.
func passes(from, to net.Conn, within time.Duration) bool {
	_ = to.SetReadDeadline(time.Now().Add(within))
	_, err := from.Write([]byte("."))
	if err == nil {
		_, err = io.ReadFull(to, make([]byte, 1))
	}
	return err == nil
}

// TestConnectionsOfAReload: what a container has begun in the moment in which a firewall was loaded
// again, and the table was gone, does not live on when it may not reach it. Other connections do.
func TestConnectionsOfAReload(t *testing.T) {
	n := openNetwork(t, options(t, "moment0"))
	c, err := n.Attach(t.Context(), "c", []int{containerPort}, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	theirs, theirAddress := otherContainer(t, "10.82.0.0/16")
	inside, beside := acceptAt(t, c.Path, containerPort), acceptAt(t, theirs, containerPort)
	onHost, beyond := acceptAt(t, "", hostPort), acceptAt(t, outside, hostPort)
	published := at(hostAddress, c.Ports[containerPort])
	wantSilence(t, c.Path, at(hostAddress, hostPort))
	wantSilence(t, c.Path, at(theirAddress, containerPort))

	for name, tracked := range map[string]bool{"other rules track connections": true, "no rule is left": false} {
		t.Run(name, func(t *testing.T) {
			permitted := map[string]link{
				"a client's": connectTo(t, inside, outside, published), "of a client behind a bridge": connectTo(t, inside, theirs, published),
				"the container's own": connectTo(t, beyond, c.Path, at(outsideAddress, hostPort)),
			}
			refused := map[string]link{}
			func() {
				n.mu.Lock() // so that the table is not made again yet
				defer n.mu.Unlock()
				flushAll(t)
				if tracked {
					trackConnections(t)
				}
				refused["to the host"] = connectTo(t, onHost, c.Path, at(hostAddress, hostPort))
				refused["to a container behind a bridge"] = connectTo(t, beside, c.Path, at(theirAddress, containerPort))
			}()
			wait.Until(t, "the table is complete", func() bool { return complete(n) })

			for name, l := range permitted {
				if !passes(l.client, l.server, wait.Patience()) || !passes(l.server, l.client, wait.Patience()) {
					t.Errorf("the connection does not go on: %s", name)
				}
			}
			for name, l := range refused {
				// The server is the first to send, so that the kernel could take the connection for
				// its own.
				if _, err := l.server.Write([]byte(".")); err != nil {
					t.Fatal(err)
				}
				if passes(l.client, l.server, refusal) {
					t.Errorf("the connection goes on: %s", name)
				}
			}
		})
	}
}

// TestErrors: ICMP errors about a connection pass, to a container and to its clients.
func TestErrors(t *testing.T) {
	n := openNetwork(t, options(t, "errors0"))
	c := startContainer(t, n, "c", netip.Addr{})
	err := in(c.ns, func() error {
		conn, err := net.Dial("udp4", at(outsideAddress, 9))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		// The kernel that refuses sends so many ICMP errors in a second, so the datagram is repeated.
		for until := wait.Deadline(); time.Now().Before(until); {
			if _, err = conn.Write([]byte(".")); err == nil {
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				_, err = conn.Read(make([]byte, 1))
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
		}
		return err
	})
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed port outside answers %v, want a refused connection", err)
	}
	err = in(c.ns, func() error {
		return wait.Command(t, "iptables", "-A", "INPUT", "-p", "tcp", "-j", "REJECT",
			"--reject-with", "icmp-host-prohibited").Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(outside, at(hostAddress, c.Ports[containerPort]), wait.Patience()); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("a container that prohibits connections answers %v, want an unreachable host", err)
	}
}

// trackConnections makes a table that has the kernel track connections, until the test ends.
func trackConnections(t *testing.T) {
	t.Helper()
	conn, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: "tracking", Family: nftables.TableFamilyINet})
	policy := nftables.ChainPolicyAccept
	input := conn.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	conn.AddRule(&nftables.Rule{Table: table, Chain: input, Exprs: nft.Join(nft.Connection(expr.CtKeySTATE, replying), nft.Accept())})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeTable(t, "tracking") })
}

// otherContainer makes a namespace that another program has behind a bridge.
func otherContainer(t *testing.T, subnet string) (namespace string, address netip.Addr) {
	t.Helper()
	o := options(t, "docker0")
	o.Subnet = netip.MustParsePrefix(subnet)
	other, err := openBridge(o, nil, nil, o.Logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.remove(); err != nil {
			t.Error(err)
		}
	})
	address = other.gateway.Next()
	theirs, err := other.makeNamespace(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(theirs.close)
	return theirs.path(), address
}
