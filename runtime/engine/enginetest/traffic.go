package enginetest

import (
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/test/wait"
)

// refusal is how long a test waits for a report that must not come.
const refusal = 300 * time.Millisecond

// watch is a watch of the traffic to a container.
type watch struct {
	reports atomic.Int64
	stop    func()
}

func (w *watch) wantReport(t *testing.T) {
	t.Helper()
	wait.Until(t, "a packet is reported", func() bool { return w.reports.Load() > 0 })
}

func (w *watch) wantNoReport(t *testing.T) {
	t.Helper()
	if wait.Within(refusal, func() bool { return w.reports.Load() > 0 }) {
		t.Error("a packet is reported")
	}
}

// watchTraffic watches the traffic to a container until stop is called, or the test ends.
func (s *suite) watchTraffic(t *testing.T, id string) *watch {
	t.Helper()
	w := &watch{}
	stop, err := s.engine.(engine.Traffic).WatchTraffic(t.Context(), id, func() { w.reports.Add(1) })
	if err != nil {
		t.Fatalf("WatchTraffic: %v", err)
	}
	w.stop = stop
	t.Cleanup(stop)
	return w
}

func (s *suite) freeze(t *testing.T, id string) {
	t.Helper()
	if err := s.engine.Freeze(t.Context(), id); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
}

func (s *suite) thaw(t *testing.T, id string) {
	t.Helper()
	if err := s.engine.Thaw(t.Context(), id); err != nil {
		t.Fatalf("Thaw: %v", err)
	}
}

// echo is a container that sends back what it gets, and the address that it is published at.
func (s *suite) echo(t *testing.T) (id, name, address string) {
	t.Helper()
	spec := s.spec("echo", "8080")
	spec.Network, spec.Publish, spec.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	id = s.start(t, spec)
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.inspect(t, id).Ports[8080]))
	s.waitLog(t, id, "listening")
	return id, spec.Name, address
}

// connect opens a connection that is closed after the test.
func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	connection, err := net.DialTimeout("tcp", address, wait.Patience())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	_ = connection.SetDeadline(wait.Deadline())
	return connection
}

func write(t *testing.T, connection net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(connection, text); err != nil {
		t.Fatal(err)
	}
}

func wantEcho(t *testing.T, connection net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(connection, got); err != nil || string(got) != text {
		t.Errorf("the container sends %q, %v; want %q", got, err, text)
	}
}

// testTraffic: connections and data that come while the container is frozen are reported, and
// served once it is thawed; the end of a connection is not reported.
func (s *suite) testTraffic(t *testing.T) {
	if _, ok := s.engine.(engine.Traffic); !ok {
		return
	}
	id, _, address := s.echo(t)
	known, ending := connect(t, address), connect(t, address)
	for _, connection := range []net.Conn{known, ending} {
		write(t, connection, "before")
		wantEcho(t, connection, "before")
	}

	quiet := s.watchTraffic(t, id)
	s.freeze(t, id)
	if err := ending.Close(); err != nil {
		t.Fatal(err)
	}
	quiet.wantNoReport(t)
	quiet.stop()

	opened := s.watchTraffic(t, id)
	type dialed struct {
		connection net.Conn
		err        error
	}
	dialing := make(chan dialed, 1) // a kernel of the container's own accepts nothing while it is frozen
	go func() {
		connection, err := net.DialTimeout("tcp", address, wait.Patience())
		dialing <- dialed{connection, err}
	}()
	opened.wantReport(t)
	opened.stop()
	s.thaw(t, id)
	newOne := wait.For(t, "the connection", dialing)
	if newOne.err != nil {
		t.Fatal(newOne.err)
	}
	defer func() { _ = newOne.connection.Close() }()
	_ = newOne.connection.SetDeadline(wait.Deadline())

	carried := s.watchTraffic(t, id)
	s.freeze(t, id)
	carried.wantNoReport(t)
	write(t, newOne.connection, "data")
	carried.wantReport(t)
	write(t, known, "and more")
	carried.stop()
	after := carried.reports.Load()
	write(t, known, " after the stop")
	s.thaw(t, id)
	wantEcho(t, newOne.connection, "data")
	wantEcho(t, known, "and more after the stop")
	if got := carried.reports.Load(); got > after+1 {
		t.Errorf("%d reports after the stop", got-after)
	}
}

// testTrafficEnds: watches of a container can be repeated, and be stopped also once the container
// is gone.
func (s *suite) testTrafficEnds(t *testing.T) {
	if _, ok := s.engine.(engine.Traffic); !ok {
		return
	}
	id, name, address := s.echo(t)
	for range 100 {
		w := s.watchTraffic(t, id)
		w.stop()
		w.stop()
	}
	watches := []*watch{s.watchTraffic(t, id), s.watchTraffic(t, id)} // of the same container
	if !s.ownKernel {
		joined := s.spec("sleep")
		joined.Network, joined.Join = engine.NetworkOwn, name
		watches = append(watches, s.watchTraffic(t, s.start(t, joined))) // shares its traffic
	}
	connection := connect(t, address)
	for _, w := range watches {
		w.wantReport(t)
	}
	write(t, connection, "served")
	wantEcho(t, connection, "served")
	if err := s.engine.Remove(t.Context(), id); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	for _, w := range watches {
		w.stop()
	}
	_, err := s.engine.(engine.Traffic).WatchTraffic(t.Context(), id, func() {})
	wantError(t, err, engine.ErrNotFound)
}

func (s *suite) testTrafficRefuses(t *testing.T) {
	traffic, ok := s.engine.(engine.Traffic)
	if !ok {
		return
	}
	watch := func(id string) error {
		stop, err := traffic.WatchTraffic(t.Context(), id, func() {})
		if err == nil {
			stop()
		}
		return err
	}
	wantError(t, watch("enginetest-"+uuid.NewString()), engine.ErrNotFound)
	wantError(t, watch(s.create(t, s.spec("sleep"))), engine.ErrNotRunning)
	ended := s.start(t, s.spec("exit", "0"))
	s.waitStatus(t, ended, engine.StatusExited)
	wantError(t, watch(ended), engine.ErrNotRunning)
	networks := []engine.Network{engine.NetworkNone, engine.NetworkHost}
	if s.ownKernel {
		networks = networks[:1] // the only one of these that it can have
	}
	for _, network := range networks {
		spec := s.spec("sleep")
		spec.Network = network
		wantError(t, watch(s.start(t, spec)), engine.ErrInvalid, "network")
	}
}
