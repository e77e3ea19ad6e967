package box

import (
	"context"
	"time"

	"sandbox.internal/server/box/internal/daemon"
	"sandbox.internal/server/lifecycle"
)

// SleepUnsupported returns an Error of KindUnsupported where packets to a box that is frozen cannot
// be reported, so that nothing would wake it.
func (c *Containers) SleepUnsupported() error {
	switch {
	case c.options.Traffic == nil || c.info.Elsewhere:
		return lifecycle.Unsupportedf(
			`lifecycle.onIdle: pause needs a container engine on the service's own machine: the service cannot see packets to a sandbox that sleeps on another one`)
	case c.options.HostNetwork:
		return lifecycle.Unsupportedf(
			`lifecycle.onIdle: pause needs sandbox.network_mode = "bridge": packets to a sandbox in the host's network cannot be distinguished from others`)
	}
	return nil
}

// WatchTraffic calls notify for packets to the box that open a connection or carry data, until stop
// is called. It returns [lifecycle.ErrNoBox], [lifecycle.ErrBoxNotAlive] and
// [lifecycle.ErrBoxUnavailable].
func (c *Containers) WatchTraffic(ctx context.Context, record lifecycle.Record, notify func()) (stop func(), err error) {
	if err := c.SleepUnsupported(); err != nil {
		return nil, err
	}
	stop, err = c.options.Traffic.WatchTraffic(ctx, containerName(record.Box), notify)
	return stop, translated(err)
}

// HoldConnections has new connections to the published ports of a box wait that is about to be
// brought to the disk, or is there, until it runs again, and calls notify for each. It returns an
// Error of KindUnsupported where the engine does not keep the ports, and else as
// [Containers.WatchTraffic].
func (c *Containers) HoldConnections(ctx context.Context, record lifecycle.Record, notify func()) (release func(), err error) {
	if owner, _ := networkOwner(record); c.options.Ports == nil || owner != "" {
		return nil, lifecycle.Unsupportedf("the published ports of the sandbox are not kept while it is on the disk")
	}
	release, err = c.options.Ports.HoldConnections(ctx, containerName(record.Box), notify)
	return release, translated(err)
}

// WatchIdle calls handle for what execd in the box reports of its idleness, one call at a time,
// until handle returns an error, ctx ends or the report does; an error is never nil. It calls began
// first, once execd has begun to report. Idle is for how long nothing must have kept the sandbox
// awake.
func (c *Containers) WatchIdle(
	ctx context.Context, record lifecycle.Record, idle time.Duration, began func() error, handle func(lifecycle.IdleEvent) error,
) error {
	return c.daemons.WatchIdle(ctx, c.addressOf(&record, record.Port), idle, began, handle)
}

// Holds returns what keeps the sandbox of the box awake, as execd says.
func (c *Containers) Holds(ctx context.Context, record lifecycle.Record) (lifecycle.Holds, error) {
	return c.daemons.Holds(ctx, c.addressOf(&record, record.Port))
}

// addressOf is where the execd of a box is asked, by its port.
func (c *Containers) addressOf(record *lifecycle.Record, port int) daemon.Address {
	return daemon.Address{Host: c.Host(record), Port: port, Token: record.Token}
}
