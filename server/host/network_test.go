package host_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sandboxhttp"
)

// sharing is an engine whose containers share this machine's network: the execd of each, which
// answers /ping, listens where its flags say.
type sharing struct {
	engine.Engine
	t       *testing.T
	mu      sync.Mutex
	specs   []engine.ContainerSpec
	foreign atomic.Bool // the execd that answers is another sandbox's
}

func newSharing(t *testing.T, inner engine.Engine) *sharing {
	return &sharing{Engine: inner, t: t}
}

func (s *sharing) Create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	if list, err := s.Engine.List(ctx, nil); err == nil && spec.Network == engine.NetworkHost && len(list) > 0 {
		s.t.Errorf("a container is made while %s shares the network", list[0].Name)
	}
	id, err := s.Engine.Create(ctx, spec)
	if err == nil && spec.Network == engine.NetworkHost {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.specs = append(s.specs, spec)
	}
	return id, err
}

func (s *sharing) Start(ctx context.Context, id string) error {
	s.mu.Lock()
	for _, spec := range s.specs {
		if spec.Name == id {
			answer(s.t, flagOf(spec, "--host="), flagOf(spec, "--port="), func() string {
				if s.foreign.Load() {
					return "of another sandbox"
				}
				return spec.Env["EXECD_ACCESS_TOKEN"]
			})
		}
	}
	s.mu.Unlock()
	return s.Engine.Start(ctx, id)
}

func (s *sharing) last() engine.ContainerSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.specs[len(s.specs)-1]
}

func flagOf(spec engine.ContainerSpec, name string) string {
	for _, word := range spec.Entrypoint[:slices.Index(spec.Entrypoint, "--")] {
		if value, ok := strings.CutPrefix(word, name); ok {
			return value
		}
	}
	return ""
}

func newHostNetwork(t *testing.T) (*machine, *sharing) {
	m := newMachine(t)
	shared := newSharing(t, m.box.Engine)
	m.box.Engine, m.box.HostNetwork, m.box.EngineHost = shared, true, "192.0.2.1"
	return m, shared
}

func TestHostNetwork(t *testing.T) {
	m, shared := newHostNetwork(t)
	m.start()
	id := m.running()
	made := shared.last()
	port, err := strconv.Atoi(flagOf(made, "--port="))
	if err != nil || flagOf(made, "--host=") != "127.0.0.1" || len(made.Publish) > 0 {
		t.Fatalf("the container is %+v", made)
	}
	if port < 20000 || port > 32767 {
		t.Errorf("execd's port %d is one that the kernel gives to outgoing connections", port)
	}
	location, err := m.host.Locate(t.Context(), id, 8000)
	endpoint := location.Endpoint
	if err != nil || endpoint.Host != "" || endpoint.Port != 0 || endpoint.Path != "/"+id+"/8000" || endpoint.Headers["X-EXECD-ACCESS-TOKEN"] == "" {
		t.Errorf("endpoint %+v, %v", endpoint, err)
	}
	if location.Daemon != "127.0.0.1:"+strconv.Itoa(port) || location.Token != endpoint.Headers["X-EXECD-ACCESS-TOKEN"] {
		t.Errorf("reached at %q with token %q", location.Daemon, location.Token)
	}
	if _, err := m.host.Locate(t.Context(), id, 0); kindOf(err) != lifecycle.KindInvalid {
		t.Errorf("port 0: %v", err)
	}

	// One at a time, in whatever state the one is.
	refused := func() {
		t.Helper()
		_, err := m.host.Create(t.Context(), spec(), lifecycle.CreateOptions{})
		if kindOf(err) != lifecycle.KindConflict || !strings.Contains(err.Error(), "one sandbox at a time") || !strings.Contains(err.Error(), id) {
			t.Errorf("a second sandbox: %v", err)
		}
	}
	refused()
	if err := m.host.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StatePaused)
	refused()

	// A restarted service finds it, also when the configuration says bridge by then.
	m.host.Close()
	m.box.HostNetwork = false
	m.start()
	if err := m.host.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateRunning)
	if again, err := m.host.Locate(t.Context(), id, 8000); err != nil || again.Daemon != location.Daemon {
		t.Errorf("after a restart it is reached at %q, %v; want %q", again.Daemon, err, location.Daemon)
	}
	m.host.Close()
	m.box.HostNetwork = true
	m.start()
	refused()
	if err := m.host.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.await(id, lifecycle.StateTerminated)
	m.running()
}

// TestHostNetworkForeignDaemon: what answers at the port must have the sandbox's token.
func TestHostNetworkForeignDaemon(t *testing.T) {
	m, shared := newHostNetwork(t)
	m.start()
	shared.foreign.Store(true)
	id := m.create()
	wait.Until(t, "the status says that execd is waited for", func() bool { return m.get(id).Status.Message == "waiting for execd to answer" }, func() any { return m.get(id).Status })
	looks := m.engine.count(callInspect)
	wait.Until(t, "the container is looked at again", func() bool { return m.engine.count(callInspect) > looks+1 })
	if got := m.get(id).Status.State; got != lifecycle.StatePending {
		t.Errorf("while another execd answers the sandbox is %s", got)
	}
	shared.foreign.Store(false)
	m.await(id, lifecycle.StateRunning)
}

// TestHostNetworkTogether: of creates at the same moment one wins.
func TestHostNetworkTogether(t *testing.T) {
	m, _ := newHostNetwork(t)
	m.start()
	var all sync.WaitGroup
	kinds := make(chan lifecycle.Kind, 8)
	for range cap(kinds) {
		all.Go(func() {
			_, err := m.host.Create(context.Background(), spec(), lifecycle.CreateOptions{})
			kinds <- kindOf(err)
		})
	}
	all.Wait()
	close(kinds)
	won := 0
	for kind := range kinds {
		switch kind {
		case "":
			won++
		case lifecycle.KindConflict:
		default:
			t.Errorf("an error of kind %s", kind)
		}
	}
	if won != 1 {
		t.Errorf("%d sandboxes at a time", won)
	}
}

// TestHostNetworkWaitsForTheContainerBefore: a sandbox that has failed lets the next one in, but
// the next one's container starts only when nothing is left of it.
func TestHostNetworkWaitsForTheContainerBefore(t *testing.T) {
	m, _ := newHostNetwork(t)
	m.start()
	first := m.running()
	removal := newGate()
	m.engine.failBefore(callRemove, removal.fault)
	m.engine.exit(container(first), 1, false)
	m.await(first, lifecycle.StateFailed)
	removal.await(t)
	second := m.create()
	if got := m.get(second).Status.State; got != lifecycle.StatePending {
		t.Errorf("while the first one's container is there the second is %s", got)
	}
	close(removal.open)
	m.await(second, lifecycle.StateRunning)
}

// TestHostNetworkLostRecords: the port is written on the container.
func TestHostNetworkLostRecords(t *testing.T) {
	m, shared := newHostNetwork(t)
	m.start()
	id := m.running()
	location, err := m.host.Locate(t.Context(), id, 80)
	if err != nil {
		t.Fatal(err)
	}
	m.host.Close()
	other, _ := newHostNetwork(t) // with a store of its own
	other.box.Engine, other.engine = shared, m.engine
	other.start()
	other.await(id, lifecycle.StateRunning)
	if got, err := other.host.Locate(t.Context(), id, 80); err != nil || got.Daemon != location.Daemon {
		t.Errorf("reached at %q, %v; want %q", got.Daemon, err, location.Daemon)
	}
}

// answer is an execd of which only the answer to "are you there" matters.
func answer(t *testing.T, address, port string, token func() string) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
	if err != nil {
		t.Error(err)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.SetDeadline(wait.Deadline())
			request, err := http.ReadRequest(bufio.NewReader(connection))
			if err == nil {
				proof := sandboxhttp.Proof(token(), request.Header.Get(sandboxhttp.ChallengeHeader))
				_, _ = fmt.Fprintf(connection, "HTTP/1.1 200 OK\r\n%s: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", sandboxhttp.ProofHeader, proof)
			}
			_ = connection.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); wait.For(t, "the end of the listener", done) })
}
