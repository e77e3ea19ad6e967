package host

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"sandbox.internal/server/lifecycle"
)

// slotTimeout is how long a sandbox on the host's network waits for the end of the one before.
const slotTimeout = 30 * time.Second

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
		last := a.host.await(ctx, other, slotTimeout, func(r *lifecycle.Record) bool { return r.Removed })
		if !last.Removed && ctx.Err() == nil {
			return lifecycle.BoxFailuref(lifecycle.ReasonNetworkError,
				"the container of sandbox %s still uses the host's network, which allows one sandbox at a time", other.id)
		}
	}
	return ctx.Err()
}

// Reach returns where the service itself reaches a port of a sandbox: address is the host and port of the sandbox's execd, which passes
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
	return net.JoinHostPort(h.Box.Host(record), strconv.Itoa(record.Port)), record.Token, nil
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
	headers := map[string]string{lifecycle.TokenHeader: record.Token}
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
