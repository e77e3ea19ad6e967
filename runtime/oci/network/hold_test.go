package network

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// askLater asks the server at the address in the background.
func askLater(namespace, address string) <-chan string {
	got := make(chan string, 1)
	go func() {
		answer, err := ask(namespace, address, wait.Patience())
		if err != nil {
			answer = err.Error()
		}
		got <- answer
	}()
	return got
}

// TestHold: connections to the ports of a container that is not attached wait, and are answered
// once it is attached again, at the same ports; also those that come while it still runs.
func TestHold(t *testing.T) {
	for name, publish := range map[string]netip.Addr{"all addresses": {}, "one address": netip.MustParseAddr("127.0.0.1")} {
		t.Run(name, func(t *testing.T) {
			n := openNetwork(t, options(t, "hold0"))
			c := startContainer(t, n, "c", publish)
			port := c.Ports[containerPort]
			local := at("127.0.0.1", port)
			wantAnswer(t, "", local, "c "+c.gateway.String())
			for range 3 { // what the ones before have left is in no one's way
				var notified atomic.Int64
				release, err := n.Hold("c", func() { notified.Add(1) })
				if err != nil {
					t.Fatal(err)
				}
				answers := []<-chan string{askLater("", local)}
				wait.Until(t, "a connection waits", func() bool { return notified.Load() == 1 })
				c.stop()
				if err := n.DetachKeeping("c"); err != nil {
					t.Fatal(err)
				}
				for range 20 {
					answers = append(answers, askLater("", local))
				}
				if !publish.IsValid() {
					answers = append(answers, askLater(outside, at(hostAddress, port)))
				}
				wait.Until(t, "all connections wait", func() bool { return int(notified.Load()) == len(answers) })
				c = startContainer(t, n, "c", publish)
				if c.Ports[containerPort] != port {
					t.Errorf("published at %d, before at %d", c.Ports[containerPort], port)
				}
				for _, got := range answers {
					if answer := wait.For(t, "an answer", got); answer != "c "+c.gateway.String() {
						t.Errorf("a connection that has waited is answered %q", answer)
					}
				}
				wantAnswer(t, "", local, "c "+c.gateway.String())
				release()
				wantAnswer(t, "", local, "c "+c.gateway.String())
			}
		})
	}
}

// TestHoldReopened: connections to a container that stays go to it once it is reopened, or the hold
// is released.
func TestHoldReopened(t *testing.T) {
	n := openNetwork(t, options(t, "hold1"))
	c := startContainer(t, n, "c", netip.Addr{})
	local, want := at("127.0.0.1", c.Ports[containerPort]), "c "+c.gateway.String()
	ways := map[string]func(release func()){
		"reopened": func(release func()) {
			if err := n.Reopen("c"); err != nil {
				t.Error(err)
			}
			release()
		},
		"released":        func(release func()) { release() },
		"without a table": func(release func()) { removeTable(t, n.filter.name); release() },
	}
	for name, end := range ways {
		notified := make(chan struct{}, 1)
		release, err := n.Hold("c", func() { notified <- struct{}{} })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Hold("c", func() {}); err == nil {
			t.Error("connections are held twice")
		}
		got := askLater("", local)
		wait.For(t, "a connection", notified)
		end(release)
		release()
		if answer := wait.For(t, "an answer", got); answer != want {
			t.Errorf("%s: a connection that has waited is answered %q", name, answer)
		}
		wantAnswer(t, "", local, want)
	}
}

// TestHoldBounds: connections beyond the bound are closed, and so are all where nothing holds them;
// the port stays the container's until that is removed.
func TestHoldBounds(t *testing.T) {
	n := openNetwork(t, options(t, "hold2"))
	c := startContainer(t, n, "c", netip.Addr{})
	port := c.Ports[containerPort]
	local := at("127.0.0.1", port)
	c.stop()
	if err := n.DetachKeeping("c"); err != nil {
		t.Fatal(err)
	}
	wantSilence(t, "", local)
	var notified atomic.Int64
	release, err := n.Hold("c", func() { notified.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	var ended atomic.Int64
	var clients sync.WaitGroup
	for range maxWaiting + 10 {
		clients.Go(func() {
			_, _ = ask("", local, wait.Patience())
			ended.Add(1)
		})
	}
	wait.Until(t, "connections beyond the bound are closed", func() bool { return ended.Load() == 10 && notified.Load() == maxWaiting })
	release()
	release()
	wantSilence(t, "", local)
	if listener, err := net.Listen("tcp4", at("", port)); err == nil {
		t.Error("another process listens at a port that is kept", listener.Close())
	}
	if err := n.Detach("c"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hold("c", func() {}); !errors.Is(err, engine.ErrNotRunning) {
		t.Errorf("hold a container without ports: %v", err)
	}
	listenOnHost(t, port)
	n.Close() // which ends what waits
	clients.Wait()
}

// TestKeptPorts: a network that is opened again has the ports of containers that do not run, but
// for those that another process has taken.
func TestKeptPorts(t *testing.T) {
	o := options(t, "hold3")
	n := openNetwork(t, o)
	c := startContainer(t, n, "c", netip.Addr{})
	taken := startContainer(t, n, "taken", netip.Addr{})
	o.Kept = []Attachment{
		{Container: "c", Ports: c.Ports},
		{Container: "taken", Ports: taken.Ports},
	}
	c.stop()
	taken.stop()
	closeClean(t, n)
	listenOnHost(t, taken.Ports[containerPort])
	n = openNetwork(t, o)
	notified := make(chan struct{}, 1)
	release, err := n.Hold("c", func() { notified <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	got := askLater("", at("127.0.0.1", c.Ports[containerPort]))
	wait.For(t, "a connection", notified)
	again := startContainer(t, n, "c", netip.Addr{})
	if answer := wait.For(t, "an answer", got); answer != "c "+again.gateway.String() {
		t.Errorf("a connection that has waited is answered %q", answer)
	}
	if other := startContainer(t, n, "taken", netip.Addr{}); other.Ports[containerPort] == taken.Ports[containerPort] {
		t.Error("a port is published that another process has")
	}
}

// TestJoin: connections that are passed on carry bytes, and end when the container is detached.
func TestJoin(t *testing.T) {
	client, server := tcpPair(t)
	gone := make(chan struct{})
	done := make(chan struct{})
	other, far := tcpPair(t)
	go func() {
		defer close(done)
		join(t.Context(), gone, server, other)
	}()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 5)
	if _, err := io.ReadFull(far, buffer); err != nil || string(buffer) != "hello" {
		t.Errorf("received %q, %v", buffer, err)
	}
	close(gone)
	wait.For(t, "the end of the connections", done)
	_ = client.SetReadDeadline(time.Now().Add(wait.Patience()))
	if _, err := client.Read(buffer); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a connection to a container that is gone: %v", err)
	}
}

func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if a, err = net.DialTCP("tcp4", nil, listener.Addr().(*net.TCPAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = listener.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// TestConnectionsOfAll: connections of one container leave none to another where all together may
// not be more, and what is refused counts nowhere.
func TestConnectionsOfAll(t *testing.T) {
	n := &Network{passed: make(chan struct{}, 2)}
	one := &hold{network: n, waiting: make(chan struct{}, 3), passed: make(chan struct{}, 3)}
	two := &hold{network: n, waiting: make(chan struct{}, 3), passed: make(chan struct{}, 1)}
	if !one.admit() || !two.admit() || two.admit() || one.admit() {
		t.Error("two connections are not as many as may wait")
	}
	for name, h := range map[string]*hold{"one": one, "two": two} {
		if len(h.waiting) != 1 || len(h.passed) != 1 {
			t.Errorf("%s: %d connections wait, %d are counted", name, len(h.waiting), len(h.passed))
		}
	}
	wait.For(t, "the end of a connection", n.passed)
	if two.admit() || len(n.passed) != 1 {
		t.Error("a connection that is one too many of its container is counted")
	}
}
