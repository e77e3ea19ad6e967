package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

const (
	// daemonPort is where execd listens in a sandbox that has a network of its own (execd document, default port).
	daemonPort = 44772
	// labelPort is on containers that share the host's network: the port of their execd.
	labelPort = lifecycle.LabelPrefix + "execd-port"
	// tokenHeader carries the token of an execd (execd document, "Authentication").
	tokenHeader = "X-EXECD-ACCESS-TOKEN"
	// loopback is the one address that execd listens on when a sandbox shares the host's network.
	loopback = "127.0.0.1"

	// Ports for execd are chosen below those that Linux gives to outgoing connections by default: such a connection could
	// otherwise take the port while execd is being restarted.
	lowestPort, highestPort = 20000, 32767
)

// freePort returns a port of this machine's loopback interface that nobody listens on.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free port on %s: %w", loopback, err)
}

// connect says how the container is connected, and returns the flags that tell its execd.
func (h *Host) connect(record lifecycle.Record, spec *engine.ContainerSpec) (flags []string, err error) {
	if record.Sidecar != nil {
		wallIn(record.Sandbox.ID, spec)
		return nil, nil
	}
	if !record.HostNetwork {
		spec.Publish, spec.PublishIP = []int{daemonPort}, h.PublishIP
		return nil, nil
	}
	port, err := freePort()
	if err != nil {
		return nil, &provisionError{reason: lifecycle.ReasonNetworkError, text: err.Error()}
	}
	spec.Network = engine.NetworkHost
	spec.Labels[labelPort] = strconv.Itoa(port)
	return []string{"--host=" + loopback, "--port=" + strconv.Itoa(port)}, nil
}

// portOf returns the port at which the container's execd is reached, 0 while it has none. It goes by what the container is, and not
// by the configuration, which may have changed since.
func portOf(container engine.Container) int {
	if text, ok := container.Labels[labelPort]; ok {
		port, _ := strconv.Atoi(text) // the label is ours
		return port
	}
	return container.Ports[daemonPort]
}

// reachHost returns the host at which the service reaches the execd of a sandbox.
func (h *Host) reachHost(record *lifecycle.Record) string {
	if record.HostNetwork {
		return loopback
	}
	return h.EngineHost
}

// slotFree refuses another sandbox while one shares the host's network ("Networking rules", 1).
func (h *Host) slotFree() error {
	for _, a := range h.registry.all() {
		if state := a.now().Sandbox.Status.State; !state.Final() {
			return lifecycle.Conflictf("docker.network_mode is host, which allows one sandbox at a time, and sandbox %s is %s: delete it first", a.id, state)
		}
	}
	return nil
}

// awaitSlot waits until nothing is left of the sandboxes before this one: a sandbox that has failed does not hold the slot any more,
// but its processes may still hold ports.
func (a *actor) awaitSlot(ctx context.Context) error {
	for _, other := range a.host.registry.all() {
		if other == a {
			continue
		}
		last := a.host.await(ctx, other, readyTimeout, func(r *lifecycle.Record) bool { return r.Removed })
		if !last.Removed && ctx.Err() == nil {
			return &provisionError{
				reason: lifecycle.ReasonNetworkError,
				text:   fmt.Sprintf("the container of sandbox %s still uses the host's network, which allows one sandbox at a time", other.id),
			}
		}
	}
	return ctx.Err()
}

// Reach tells where the service itself reaches a port of a sandbox: address is the host and port of the sandbox's execd, which passes
// on what is asked for below /proxy/{port}, and token is what execd demands in the header X-EXECD-ACCESS-TOKEN. It waits for a Pending
// sandbox and returns errors as Endpoint does.
func (h *Host) Reach(ctx context.Context, id string, port int) (address, token string, err error) {
	record, err := h.reachable(ctx, id, port)
	if err != nil {
		return "", "", err
	}
	if record.Sidecar != nil && port == lifecycle.SidecarPort { // a token sent this way would pass through the sandbox
		return "", "", lifecycle.Conflictf("port %d is the egress sidecar's: use its endpoint, or the operations for the network policy", port)
	}
	return net.JoinHostPort(h.reachHost(record), strconv.Itoa(record.Port)), record.Token, nil
}

// Endpoint implements lifecycle.Backend.
func (h *Host) Endpoint(ctx context.Context, id string, port int) (lifecycle.Endpoint, error) {
	record, err := h.reachable(ctx, id, port)
	if err != nil {
		return lifecycle.Endpoint{}, err
	}
	if record.Sidecar != nil && port == lifecycle.SidecarPort {
		return h.sidecarEndpoint(*record.Sidecar)
	}
	headers := map[string]string{tokenHeader: record.Token}
	if record.HostNetwork { // the service passes requests on, because execd listens on the loopback interface only
		return lifecycle.Endpoint{Path: fmt.Sprintf("/%s/%d", id, port), Headers: headers}, nil
	}
	return lifecycle.Endpoint{Host: h.EndpointHost, Port: record.Port, Path: fmt.Sprintf("/proxy/%d", port), Headers: headers}, nil
}

// reachable returns the record of a sandbox whose execd can be asked. It waits for a Pending one.
func (h *Host) reachable(ctx context.Context, id string, port int) (*lifecycle.Record, error) {
	if err := lifecycle.CheckPort(port); err != nil {
		return nil, err
	}
	a, err := h.registry.get(id)
	if err != nil {
		return nil, err
	}
	record := h.await(ctx, a, endpointTimeout, func(r *lifecycle.Record) bool {
		return r.Sandbox.Status.State != lifecycle.StatePending
	})
	switch state := record.Sandbox.Status.State; {
	case state.Final(), state == lifecycle.StateStopping:
		return nil, lifecycle.Conflictf("the sandbox is %s and has no endpoint", state)
	case state == lifecycle.StatePending, record.Port == 0:
		conflict := lifecycle.Conflictf("the sandbox is %s and does not answer yet; ask again", state)
		conflict.RetryAfter = 1
		return nil, conflict
	}
	return record, nil
}

// answers asks the container's execd until it answers, for a short while. began is when it was asked first.
func (a *actor) answers(ctx context.Context, record *lifecycle.Record, container engine.Container, began time.Time) (port int, err error) {
	if port = portOf(container); port == 0 {
		return 0, errors.New("the engine has not published its port")
	}
	asked := daemon{host: a.host.reachHost(record), port: port, token: record.Token}
	if err := a.host.prober.until(ctx, asked, began, 200*time.Millisecond); err != nil {
		return port, err
	}
	return port, a.meet(ctx, record, container)
}
