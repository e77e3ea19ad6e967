package box

import (
	"context"
	"slices"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Limits of a sidecar's container. The egress daemon needs a third of the memory.
const (
	sidecarMemory = 64 << 20
	sidecarPIDs   = 128
	sidecarCPU    = 1e9
)

func sidecarName(box string) string { return containerName(box) + "-egress" }

// joinSidecar leaves the sandbox's container no way around its sidecar: the sidecar's network, and
// neither of the capabilities that could change it or forge what the filter goes by ("Networking
// rules", 4).
func joinSidecar(box string, spec *engine.ContainerSpec) {
	spec.Join = sidecarName(box)
	for _, capability := range []string{"NET_ADMIN", "NET_RAW"} {
		if !slices.Contains(spec.Security.DropCapabilities, capability) {
			spec.Security.DropCapabilities = slices.Concat(spec.Security.DropCapabilities, []string{capability})
		}
	}
}

// startSidecar starts the sidecar of a record and returns when its firewall is installed, with the
// record's policy.
func (c *Containers) startSidecar(ctx context.Context, record lifecycle.Record) error {
	imageID, err := c.images.Own(ctx, record.Sidecar.Image)
	if err != nil {
		return err
	}
	env, whole, err := c.options.Sidecars.Environment(*record.Sidecar, record.Spec.NetworkPolicy)
	if err != nil {
		return err
	}
	env["EGRESS_REFUSE_NEIGHBOURS"] = "true" // a sandbox reaches no other, on networks that connect them too
	if err := c.createAndStart(c.sidecarSpec(record, imageID, env)); err != nil {
		return err
	}
	sidecar, err := c.awaitFirewall(ctx, record)
	if err != nil || whole {
		return err
	}
	_, err = c.options.Sidecars.Change(ctx, sidecar, lifecycle.PolicyChange{Replace: record.Spec.NetworkPolicy})
	return err
}

func (c *Containers) sidecarSpec(record lifecycle.Record, imageID string, env map[string]string) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name:      sidecarName(record.Box),
		ImageID:   imageID,
		Labels:    c.networkLabels(record, "egress"),
		Env:       env,
		Publish:   []int{lifecycle.DaemonPort, lifecycle.SidecarPort},
		PublishIP: c.options.PublishIP,
		Resources: engine.Resources{NanoCPUs: sidecarCPU, MemoryBytes: sidecarMemory, PIDs: sidecarPIDs},
		Security: engine.Security{
			DropCapabilities: []string{"ALL"},
			AddCapabilities:  []string{"NET_ADMIN"},
			NoNewPrivileges:  true,
		},
		HostUsers: true, // the network namespace is the host's, and so is the right to change it
		Sysctls:   map[string]string{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"},
	}
}

// awaitFirewall waits until the sidecar answers that its firewall is installed, and returns where
// it is reached.
func (c *Containers) awaitFirewall(ctx context.Context, record lifecycle.Record) (lifecycle.Sidecar, error) {
	sidecar := *record.Sidecar
	var lastErr error
	for range c.attempts(ctx) {
		container, err := c.ensureNetworkRuns(ctx, record)
		if err != nil {
			return sidecar, err
		}
		sidecar.Port = container.Ports[lifecycle.SidecarPort]
		if _, lastErr = c.options.Sidecars.Health(ctx, sidecar); lastErr == nil {
			return sidecar, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return sidecar, err
	}
	return sidecar, lifecycle.BoxFailuref(lifecycle.ReasonProvisionTimeout, "the egress sidecar did not answer within %v: %v%s",
		readyTimeout, lastErr, lifecycle.LogAfterMessage(c.lastLines(ctx, sidecarName(record.Box))))
}
