package host

import (
	"context"
	"io"
	"reflect"

	"sandbox.internal/server/lifecycle"
)

// runningSidecar returns the sandbox's actor and its sidecar, if that runs.
func (h *Host) runningSidecar(id string) (*actor, lifecycle.Sidecar, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return nil, lifecycle.Sidecar{}, err
	}
	record := a.snapshot()
	if record.Sidecar == nil {
		return nil, lifecycle.Sidecar{}, lifecycle.Conflictf(
			"the sandbox has no egress sidecar: when it was created, " +
				"the network mode was host or egress.image was not set")
	}
	if err := record.Sandbox.Status.State.CheckSidecar(); err != nil {
		return nil, lifecycle.Sidecar{}, err
	}
	if record.Stopped {
		return nil, lifecycle.Sidecar{}, isStopped("ask the egress sidecar")
	}
	return a, *record.Sidecar, nil
}

// isStopped refuses what takes a sandbox whose processes run, or are frozen.
func isStopped(action string) error {
	return lifecycle.Conflictf(
		"cannot %s: the processes of the sandbox are gone, and its files are kept; resume it first", action)
}

// NetworkPolicy implements lifecycle.Backend.
func (h *Host) NetworkPolicy(ctx context.Context, id string) (lifecycle.NetworkPolicy, error) {
	_, sidecar, err := h.runningSidecar(id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	return h.options.Sidecars.Policy(ctx, sidecar)
}

// ChangeNetworkPolicy implements lifecycle.Backend. The sidecar is changed first: the record has
// the policy in force, and after a crash in between the next start reads it from the sidecar.
func (h *Host) ChangeNetworkPolicy(
	ctx context.Context, id string, change lifecycle.PolicyChange,
) (lifecycle.NetworkPolicy, error) {
	a, _, err := h.runningSidecar(id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	a.policy.Lock()
	defer a.policy.Unlock()
	_, sidecar, err := h.runningSidecar(id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	// a client that disconnects must not make record and sidecar differ
	ctx = context.WithoutCancel(ctx)
	policy, err := h.options.Sidecars.Change(ctx, sidecar, change)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	return policy, a.do(ctx, func() error {
		if reflect.DeepEqual(a.record.Spec.NetworkPolicy, &policy) {
			return nil
		}
		record := a.record
		record.Spec.NetworkPolicy = policy.Clone()
		event := a.event(lifecycle.EventPolicy)
		event.NetworkPolicy = policy.Clone()
		return a.commit(synced, record, event)
	})
}

// ProposeNetworkPolicy implements lifecycle.Backend.
func (h *Host) ProposeNetworkPolicy(
	ctx context.Context, id string,
) (lifecycle.NetworkPolicy, error) {
	_, sidecar, err := h.runningSidecar(id)
	if err != nil {
		return lifecycle.NetworkPolicy{}, err
	}
	return h.options.Sidecars.Propose(ctx, sidecar)
}

// NetworkDecisions implements lifecycle.Backend.
func (h *Host) NetworkDecisions(
	ctx context.Context, id string, request lifecycle.DecisionsRequest,
) (io.ReadCloser, error) {
	_, sidecar, err := h.runningSidecar(id)
	if err != nil {
		return nil, err
	}
	return h.options.Sidecars.Decisions(ctx, sidecar, request)
}

// sidecarEndpoint returns the endpoint of the sidecar's API. It never leads through execd: a root
// process in the sandbox could read the sidecar's token there.
func (h *Host) sidecarEndpoint(sidecar lifecycle.Sidecar) (lifecycle.Endpoint, error) {
	if sidecar.Port == 0 {
		conflict := lifecycle.Conflictf(
			"the sandbox's egress sidecar does not answer yet; ask again")
		conflict.RetryAfter = 1
		return lifecycle.Endpoint{}, conflict
	}
	return lifecycle.Endpoint{
		Host:    h.options.EndpointHost,
		Port:    sidecar.Port,
		Headers: map[string]string{lifecycle.SidecarTokenHeader: sidecar.Token},
	}, nil
}
