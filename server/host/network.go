package host

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"sandbox.internal/server/lifecycle"
)

// slotTimeout is how long a sandbox on the host's network waits until the one before it is removed.
const slotTimeout = 30 * time.Second

// slotFree returns an error while another sandbox shares the host's network ("Networking rules",
// 1).
func (h *Host) slotFree() error {
	for _, a := range h.registry.all() {
		if state := a.snapshot().Sandbox.Status.State; !state.Final() {
			return lifecycle.Conflictf(
				"the network mode is host, which allows one sandbox at a time, and sandbox %s "+
					"is %s: delete it first",
				a.id, state)
		}
	}
	return nil
}

// awaitSlot waits until the boxes of the sandboxes before this one are removed: a sandbox that has
// failed does not hold the slot any more, but its processes may still hold ports.
func (a *actor) awaitSlot(ctx context.Context) error {
	for _, other := range a.host.registry.all() {
		if other == a {
			continue
		}
		last := other.await(ctx, slotTimeout,
			func(r *lifecycle.Record) bool { return r.Removed })
		if !last.Removed && ctx.Err() == nil {
			return lifecycle.BoxFailuref(lifecycle.ReasonNetworkError,
				"the container of sandbox %s still uses the host's network, which allows one "+
					"sandbox at a time",
				other.id)
		}
	}
	return ctx.Err()
}

// Locate implements lifecycle.Backend.
func (h *Host) Locate(ctx context.Context, id string, port int) (lifecycle.Location, error) {
	record, err := h.reachable(ctx, id, port)
	if err != nil {
		return lifecycle.Location{}, err
	}
	ofSidecar := record.Sidecar != nil && port == lifecycle.SidecarPort
	switch reason := whyStopped(record); {
	case reason != nil && ofSidecar: // the service forwards nothing to it
		return lifecycle.Location{}, reason
	case reason != nil:
		return lifecycle.Location{Endpoint: throughService(record, port), Token: record.Token, Stopped: reason}, nil
	}
	if ofSidecar {
		endpoint, err := h.sidecarEndpoint(*record.Sidecar)
		return lifecycle.Location{Endpoint: endpoint}, err
	}
	location := lifecycle.Location{
		Endpoint: lifecycle.Endpoint{
			Host: h.options.EndpointHost,
			Port: record.Port,
			Path: fmt.Sprintf("/proxy/%d", port),
		},
		Daemon: net.JoinHostPort(h.options.Boxes.Host(record), strconv.Itoa(record.Port)),
		Token:  record.Token,
	}
	// the service forwards requests, because execd listens on the loopback interface only
	if record.HostNetwork {
		location.Endpoint = throughService(record, port)
	}
	location.Endpoint.Headers = map[string]string{lifecycle.TokenHeader: record.Token}
	return location, nil
}

// throughService returns the endpoint of a port on a path of the service, which wakes the sandbox
// where it sleeps.
func throughService(record *lifecycle.Record, port int) lifecycle.Endpoint {
	return lifecycle.Endpoint{
		Path: fmt.Sprintf("/%s/%d", record.Sandbox.ID, port), Headers: map[string]string{lifecycle.TokenHeader: record.Token},
	}
}

// reachable returns the record of a sandbox whose execd has been located. It waits for a Pending
// one.
func (h *Host) reachable(ctx context.Context, id string, port int) (*lifecycle.Record, error) {
	if err := lifecycle.CheckPort(port); err != nil {
		return nil, err
	}
	a, err := h.registry.get(id)
	if err != nil {
		return nil, err
	}
	record := a.await(ctx, endpointTimeout, func(r *lifecycle.Record) bool {
		return r.Sandbox.Status.State != lifecycle.StatePending
	})
	switch state := record.Sandbox.Status.State; {
	case state.Final(), state == lifecycle.StateStopping:
		return nil, lifecycle.Conflictf("the sandbox is %s and has no endpoint", state)
	case whyStopped(record) != nil:
	case state == lifecycle.StatePending, record.Port == 0:
		return nil, notYet(state)
	}
	return record, nil
}

// whyStopped returns why a sandbox whose processes are not in memory is nowhere; nil for any other.
func whyStopped(record *lifecycle.Record) error {
	switch state := record.Sandbox.Status.State; {
	case record.Stopped && state == lifecycle.StatePaused:
		return isStopped("reach a port")
	case record.Stopped && state == lifecycle.StateResuming:
		return notYet(state)
	}
	return nil
}

func notYet(state lifecycle.State) error {
	conflict := lifecycle.Conflictf("the sandbox is %s and does not answer yet; ask again", state)
	conflict.RetryAfter = 1
	return conflict
}
