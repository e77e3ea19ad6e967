package box

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// The network of a sandbox belongs to its container, or to another one that its container joins:
// the egress sidecar, or a holder where the network was made ahead and sandboxes have no sidecar.

// labelNetwork is on the container that owns the network of a sandbox's, beside the labels of its
// sandbox: "egress" or "holder".
const labelNetwork = lifecycle.LabelPrefix + "sidecar"

// Limits of a holder, which only waits: it takes 4 MiB, and 5 threads on any number of processors.
const (
	holderMemory = 16 << 20
	holderPIDs   = 32
)

func holderName(box string) string { return containerName(box) + "-network" }

// networkOwner returns the name of the container that owns the network of a record's sandbox, and
// what messages call it; empty when that is the sandbox's own, or the host.
func networkOwner(record lifecycle.Record) (name, title string) {
	switch {
	case record.Sidecar != nil:
		return sidecarName(record.Box), "the egress sidecar"
	case record.SpareNetwork:
		return holderName(record.Box), "the container of the sandbox's network"
	}
	return "", ""
}

func (c *Containers) networkLabels(record lifecycle.Record, what string) map[string]string {
	return map[string]string{
		labelID: record.Sandbox.ID, labelBox: record.Box, labelInstance: c.options.Instance, labelNetwork: what,
	}
}

// makeNetwork makes the network of the sandbox, where another container owns it, or takes the one
// that was made ahead.
func (l *launching) makeNetwork(ctx context.Context) error {
	c := l.containers
	name, title := networkOwner(l.record)
	if name == "" {
		return nil
	}
	if c.spares.Claim(l.record.Box) {
		err := c.useSpare(ctx, l.record)
		if err == nil || ctx.Err() != nil {
			return err
		}
		c.options.Logger.Warn().Err(err).Str("sandbox_id", l.record.Sandbox.ID).Msg("prepared network unusable; creating a new one")
	}
	// One of an earlier launch is of no use: it may be in any state.
	if err := c.options.Engine.Remove(ctx, name); err != nil {
		return err
	}
	l.Doing(title + " is being started")
	if err := c.startNetwork(ctx, l.record); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	return nil
}

// startNetwork starts the container that owns the record's network, and returns when the sandbox's
// container may join.
func (c *Containers) startNetwork(ctx context.Context, record lifecycle.Record) error {
	if record.Sidecar != nil {
		return c.startSidecar(ctx, record)
	}
	return c.createAndStart(c.holderSpec(record))
}

// holderSpec is a container that waits: it has no socket, no capability, and nothing of the sandbox
// but its network.
func (c *Containers) holderSpec(record lifecycle.Record) engine.ContainerSpec {
	return engine.ContainerSpec{
		Name:       holderName(record.Box),
		ImageID:    c.daemonImage(),
		Labels:     c.networkLabels(record, "holder"),
		Entrypoint: []string{filepath.Join(lifecycle.DaemonPath, "execd-init"), "hold"},
		Env:        map[string]string{"GOMAXPROCS": "1"},
		Publish:    []int{lifecycle.DaemonPort},
		PublishIP:  c.options.PublishIP,
		Resources:  engine.Resources{MemoryBytes: holderMemory, PIDs: holderPIDs},
		Security:   engine.Security{DropCapabilities: []string{"ALL"}, NoNewPrivileges: true},
	}
}

// useSpare puts the record's policy into force in the network that was made ahead, which lets
// nothing pass until then.
func (c *Containers) useSpare(ctx context.Context, record lifecycle.Record) error {
	container, err := c.ensureNetworkRuns(ctx, record)
	if err != nil || record.Sidecar == nil {
		return err
	}
	sidecar, policy := *record.Sidecar, record.Spec.NetworkPolicy
	sidecar.Port = container.Ports[lifecycle.SidecarPort]
	if policy == nil {
		policy = &lifecycle.NetworkPolicy{}
	}
	_, err = c.options.Sidecars.Change(ctx, sidecar, lifecycle.PolicyChange{Replace: policy})
	return err
}

// ensureNetworkRuns returns the container that owns the record's network, and thaws it when another
// process froze it. One that has ended is a *[lifecycle.BoxFailure] that says how: the network has
// ended with it, so the sandbox is cut off for good.
func (c *Containers) ensureNetworkRuns(ctx context.Context, record lifecycle.Record) (engine.Container, error) {
	name, title := networkOwner(record)
	container, err := c.options.Engine.Inspect(ctx, name)
	switch {
	case errors.Is(err, engine.ErrNotFound), err == nil && container.Status == engine.StatusRemoving:
		return container, lifecycle.BoxFailuref(lifecycle.ReasonNetworkError,
			"%s was removed by another process; the sandbox's network has ended with it", title)
	case err != nil:
		return container, err
	case container.Status == engine.StatusFrozen:
		return container, c.options.Engine.Thaw(ctx, name)
	case container.Status != engine.StatusRunning:
		return container, lifecycle.BoxFailuref(lifecycle.ReasonNetworkError,
			"%s ended with exit code %d; the sandbox's network has ended with it%s",
			title, container.ExitCode, lifecycle.LogAfterMessage(c.lastLines(ctx, name)))
	}
	return container, nil
}
