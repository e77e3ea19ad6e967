package oci

import (
	"context"
	"fmt"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/traffic"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
)

var _ engine.Traffic = (*Engine)(nil)

// WatchTraffic implements [engine.Traffic]. A container that has joined the network of another one
// shares its traffic: packets for either of them are reported. Of a frozen container, what has come
// before and was not read is reported at once; a kernel of its own does not show that, and is taken
// to have it. The watch ends with the container,
// and with the Engine. A call of notify that has begun may end after stop has returned.
func (e *Engine) WatchTraffic(ctx context.Context, id string, notify func()) (stop func(), err error) {
	op := "watch the traffic of container " + id
	c, err := e.containers.LockAlive(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer c.Unlock()
	owner, err := e.networkOwner(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	watch, err := e.network.WatchTraffic(owner.ID)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if c.Frozen() && e.mayHaveUnread(c) {
		notify()
	}
	watching, stop := context.WithCancel(e.background.Closing())
	if !e.background.Try(func() { watch.Report(watching, notify) }) {
		stop()
		watch.Close()
		return nil, background.ClosedError(op)
	}
	ended := c.Ended()
	e.background.Run(func() {
		defer stop()
		select {
		case <-ended:
		case <-watching.Done():
		}
	})
	return stop, nil
}

// mayHaveUnread reports whether something may have come for a container since it was frozen.
func (e *Engine) mayHaveUnread(c *containers.Container) bool {
	record := c.Record()
	runtime, err := e.runtimes.get(record.Runtime)
	if err != nil || runtime.OwnKernel || !record.Started() {
		return true
	}
	unread, err := traffic.Unread("/proc", record.Run.Process.PID)
	return unread || err != nil
}

// networkOwner returns the container whose network a container is in: its own, or the one that it
// has joined.
func (e *Engine) networkOwner(c *containers.Container) (*containers.Container, error) {
	for {
		spec := c.Record().Spec
		switch {
		case spec.OwnNetwork():
			return c, nil
		case spec.Join == "":
			return nil, fmt.Errorf("%w: the container has no network of its own (%s)", engine.ErrInvalid, spec.Network)
		}
		joined, err := e.containers.Find("join", spec.Join)
		if err != nil {
			return nil, fmt.Errorf("%w: the container that it has joined is gone: %w", engine.ErrNotRunning, err)
		}
		c = joined
	}
}
