package oci_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci"
	"sandbox.internal/test/wait"
)

// packetSockets is how many packet sockets this process has.
func packetSockets(t *testing.T) int {
	t.Helper()
	list, err := os.ReadFile("/proc/net/packet")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		all["socket:["+fields[len(fields)-1]+"]"] = true
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", file.Name())); err == nil && all[target] {
			found++
		}
	}
	return found
}

// echo starts a container that sends back what it gets, and returns the address that it is
// published at.
func echo(t *testing.T, e *oci.Engine, imageID string) (id, name, address string) {
	t.Helper()
	spec := probe(imageID, "echo", "8080")
	spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	id = start(t, e, spec)
	wait.Until(t, "the container listens", func() bool {
		log, err := e.Logs(t.Context(), id, 10)
		return err == nil && strings.Contains(log, "listening")
	})
	return id, spec.Name, net.JoinHostPort("127.0.0.1", strconv.Itoa(inspect(t, e, id).Ports[8080]))
}

// TestTrafficAcrossServices: the next service has none of the watches of the one before, and
// watches what has stayed frozen.
func TestTrafficAcrossServices(t *testing.T) {
	s := newSite(t, "crun")
	first := s.mustOpen(t)
	id, _, address := echo(t, first, loadProbe(t, first))
	var early, late atomic.Int64
	if _, err := first.WatchTraffic(t.Context(), id, func() { early.Add(1) }); err != nil {
		t.Fatalf("WatchTraffic: %v", err)
	}
	if err := first.Freeze(t.Context(), id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	closeEngine(t, first)
	if got := packetSockets(t); got != 0 {
		t.Errorf("a closed engine has %d packet sockets", got)
	}
	second := s.mustOpen(t)
	defer closeEngine(t, second)
	defer removeAll(t, second)
	stop, err := second.WatchTraffic(t.Context(), id, func() { late.Add(1) })
	if err != nil {
		t.Fatalf("WatchTraffic: %v", err)
	}
	defer stop()
	connection, err := net.DialTimeout("tcp", address, wait.Patience())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetDeadline(wait.Deadline())
	if _, err := connection.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a packet is reported", func() bool { return late.Load() > 0 })
	if early.Load() > 0 {
		t.Error("a watch of the closed engine reports a packet")
	}
	if err := second.Thaw(t.Context(), id); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
	readBack(t, connection, "hello")
}

// TestTrafficBetweenServices: what has come for a frozen container while there was no service is
// reported to the next one: a connection, and data of an earlier connection. A frozen container for
// which nothing has come is not reported, also when its connections have ended.
func TestTrafficBetweenServices(t *testing.T) {
	s := newSite(t, "crun")
	first := s.mustOpen(t)
	imageID := loadProbe(t, first)
	var ids []string
	var known []net.Conn // a connection to each container
	var addresses []string
	for range 3 {
		id, _, address := echo(t, first, imageID)
		connection, err := net.DialTimeout("tcp", address, wait.Patience())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
		_ = connection.SetDeadline(wait.Deadline())
		wantEcho(t, connection, "before")
		if err := first.Freeze(t.Context(), id); err != nil {
			t.Fatalf("Freeze: %v", err)
		}
		ids, known, addresses = append(ids, id), append(known, connection), append(addresses, address)
	}
	closeEngine(t, first)

	opened, err := net.DialTimeout("tcp", addresses[0], wait.Patience())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.Close() }()
	_ = opened.SetDeadline(wait.Deadline())
	if _, err := io.WriteString(known[1], "data"); err != nil {
		t.Fatal(err)
	}
	if err := known[2].Close(); err != nil {
		t.Fatal(err)
	}

	second := s.mustOpen(t)
	defer closeEngine(t, second)
	defer removeAll(t, second)
	for i, want := range []bool{true, true, false} {
		var reports atomic.Int64
		watch := func() bool {
			stop, err := second.WatchTraffic(t.Context(), ids[i], func() { reports.Add(1) })
			if err != nil {
				t.Fatalf("WatchTraffic: %v", err)
			}
			defer stop()
			return reports.Load() > 0
		}
		if want { // the kernel may have the data on its way still
			wait.Until(t, "what came for container "+strconv.Itoa(i)+" is reported", watch)
		} else if watch() {
			t.Error("a container for which nothing came is reported")
		}
		if err := second.Thaw(t.Context(), ids[i]); err != nil {
			t.Fatalf("Thaw: %v", err)
		}
	}
	wantEcho(t, opened, "hello")
	readBack(t, known[1], "data")
}

func wantEcho(t *testing.T, connection net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(connection, text); err != nil {
		t.Fatal(err)
	}
	readBack(t, connection, text)
}

func readBack(t *testing.T, connection net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(connection, got); err != nil || string(got) != text {
		t.Errorf("the container sends %q, %v; want %q", got, err, text)
	}
}

// TestTrafficOfEnded: a watch ends with its container, also when the network that it has joined
// goes on.
func TestTrafficOfEnded(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	owner, name, _ := echo(t, e, imageID)
	spec := probe(imageID, "sleep")
	spec.Network, spec.Join = engine.NetworkOwn, name
	joined := start(t, e, spec)
	for _, id := range []string{owner, joined, joined} {
		if _, err := e.WatchTraffic(t.Context(), id, func() {}); err != nil {
			t.Fatalf("WatchTraffic: %v", err)
		}
	}
	if got := packetSockets(t); got != 3 {
		t.Errorf("there are %d packet sockets, want 3", got)
	}
	for _, step := range []struct {
		id   string
		left int
	}{{joined, 1}, {owner, 0}} {
		if err := e.Remove(t.Context(), step.id); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		wait.Until(t, "the sockets of the container are closed", func() bool { return packetSockets(t) == step.left })
	}
}

// TestConnectionsAcrossServices: a container keeps its published port while it is stopped, also
// across services, and connections wait there for it. While it starts, none is refused.
func TestConnectionsAcrossServices(t *testing.T) {
	s := newSite(t, "crun")
	first := s.mustOpen(t)
	id, _, address := echo(t, first, loadProbe(t, first))
	if _, err := first.HoldConnections(t.Context(), id, func() {}); err != nil {
		t.Fatalf("HoldConnections: %v", err)
	}
	if err := first.Suspend(t.Context(), id, 0); err != nil {
		t.Fatalf("Suspend: %v", err)
	}
	closeEngine(t, first)
	second := s.mustOpen(t)
	defer closeEngine(t, second)
	defer removeAll(t, second)
	var reports atomic.Int64
	release, err := second.HoldConnections(t.Context(), id, func() { reports.Add(1) })
	if err != nil {
		t.Fatalf("HoldConnections: %v", err)
	}
	dial := func() net.Conn {
		t.Helper()
		connection, err := net.DialTimeout("tcp", address, wait.Patience())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		_ = connection.SetDeadline(wait.Deadline())
		if _, err := connection.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		return connection
	}
	waiting := dial()
	wait.Until(t, "a connection is reported", func() bool { return reports.Load() == 1 })
	if err := second.Start(t.Context(), id); err != nil {
		t.Fatalf("Start: %v", err)
	}
	early := dial()
	readBack(t, waiting, "hello")
	readBack(t, early, "hello")
	release()
	readBack(t, dial(), "hello")
	if got := inspect(t, second, id).Ports[8080]; !strings.HasSuffix(address, ":"+strconv.Itoa(got)) {
		t.Errorf("published at %d, before at %s", got, address)
	}
}
