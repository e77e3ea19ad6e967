package box

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// labelSidecar is on the container of an egress sidecar, beside the labels of its sandbox.
const labelSidecar = lifecycle.LabelPrefix + "sidecar"

// Limits of a sidecar's container. Its guard needs a third of the memory.
const (
	sidecarMemory = 64 << 20
	sidecarPIDs   = 128
	sidecarCPU    = 1e9
)

func sidecarName(box string) string { return containerName(box) + "-egress" }

func isSidecar(container engine.Container) bool { return container.Labels[labelSidecar] != "" }

// wallIn leaves the sandbox's container no way around its sidecar: the sidecar's network, and neither of the capabilities that could
// change it or forge what the filter goes by ("Networking rules", 4).
func wallIn(box string, spec *engine.ContainerSpec) {
	spec.Join = sidecarName(box)
	for _, capability := range []string{"NET_ADMIN", "NET_RAW"} {
		if !slices.Contains(spec.Security.DropCapabilities, capability) {
			spec.Security.DropCapabilities = slices.Concat(spec.Security.DropCapabilities, []string{capability})
		}
	}
}

// makeSidecar starts the sidecar and returns when its wall stands. One of an earlier launch is of no use: it may be in any state.
func (l *launching) makeSidecar(ctx context.Context) error {
	c := l.containers
	if err := c.Engine.Remove(ctx, sidecarName(l.record.Box)); err != nil {
		return err
	}
	imageID, err := c.Engine.EnsureImage(ctx, l.record.Sidecar.Image, nil, nil)
	if err != nil {
		return fmt.Errorf("the egress sidecar: %w", err)
	}
	env, whole, err := c.Guards.Environment(*l.record.Sidecar, l.record.Spec.NetworkPolicy)
	if err != nil {
		return err
	}
	l.Doing("the egress sidecar is being started")
	if err := l.start(c.sidecarSpec(l.record, imageID, env), func() {}); err != nil {
		return fmt.Errorf("the egress sidecar: %w", err)
	}
	sidecar, err := l.awaitWall(ctx)
	if err != nil || whole {
		return err
	}
	_, err = c.Guards.Change(ctx, sidecar, lifecycle.PolicyChange{Replace: l.record.Spec.NetworkPolicy})
	return err
}

func (c *Containers) sidecarSpec(record lifecycle.Record, imageID string, env map[string]string) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name:    sidecarName(record.Box),
		ImageID: imageID,
		Labels: map[string]string{
			labelID: record.Sandbox.ID, labelBox: record.Box, labelInstance: c.Instance, labelSidecar: "egress",
		},
		Env:       env,
		Publish:   []int{lifecycle.DaemonPort, lifecycle.SidecarPort},
		PublishIP: c.PublishIP,
		Resources: engine.Resources{NanoCPUs: sidecarCPU, MemoryBytes: sidecarMemory, PIDs: sidecarPIDs},
		Security: engine.Security{
			DropCapabilities: []string{"ALL"},
			AddCapabilities:  []string{"NET_ADMIN"},
			NoNewPrivileges:  true,
		},
		Sysctls: map[string]string{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"},
	}
}

// awaitWall waits until the sidecar answers that its wall stands, and returns where it is reached.
func (l *launching) awaitWall(ctx context.Context) (lifecycle.Sidecar, error) {
	c, sidecar := l.containers, *l.record.Sidecar
	deadline := c.Clock().Add(readyTimeout)
	var lastErr error
	for pause := time.Millisecond; c.Clock().Before(deadline); pause = min(pause*5/4, 100*time.Millisecond) {
		container, err := c.sidecar(ctx, l.record.Box)
		if err != nil {
			return sidecar, err
		}
		sidecar.Port = container.Ports[lifecycle.SidecarPort]
		if _, lastErr = c.Guards.Health(ctx, sidecar); lastErr == nil {
			return sidecar, nil
		}
		if !clock.Sleep(ctx, pause) {
			return sidecar, ctx.Err()
		}
	}
	return sidecar, lifecycle.BoxFailuref(lifecycle.ReasonProvisionTimeout, "the egress sidecar did not answer within %v: %v%s",
		readyTimeout, lastErr, lifecycle.LogAfterMessage(c.lastLines(ctx, sidecarName(l.record.Box))))
}

// sidecar returns the sidecar's container. One that has ended is an error that says how: its network has ended with it, so its
// sandbox is cut off for good. One that another process froze is thawed.
func (c *Containers) sidecar(ctx context.Context, box string) (engine.Container, error) {
	name := sidecarName(box)
	container, err := c.Engine.Inspect(ctx, name)
	switch {
	case errors.Is(err, engine.ErrNotFound), err == nil && container.Status == engine.StatusRemoving:
		return container, lifecycle.BoxFailuref(lifecycle.ReasonNetworkError,
			"the egress sidecar was removed by another process; the sandbox's network has ended with it")
	case err != nil:
		return container, err
	case container.Status == engine.StatusFrozen:
		return container, c.Engine.Thaw(ctx, name)
	case container.Status != engine.StatusRunning:
		return container, lifecycle.BoxFailuref(lifecycle.ReasonNetworkError,
			"the egress sidecar ended with exit code %d; the sandbox's network has ended with it%s",
			container.ExitCode, lifecycle.LogAfterMessage(c.lastLines(ctx, name)))
	}
	return container, nil
}
