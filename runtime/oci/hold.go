package oci

import (
	"context"
	"fmt"

	"sandbox.internal/runtime/engine"
)

var _ engine.Ports = (*Engine)(nil)

// HoldConnections implements [engine.Ports].
func (e *Engine) HoldConnections(ctx context.Context, id string, notify func()) (release func(), err error) {
	op := "let connections to container " + id + " wait"
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return nil, err
	}
	defer c.Unlock()
	record := c.Record()
	switch status := c.Status(); {
	case !record.Spec.OwnNetwork():
		return nil, fmt.Errorf("%s: %w: it has no network of its own", op, engine.ErrInvalid)
	case status != engine.StatusRunning && status != engine.StatusFrozen && status != engine.StatusStopped && !keepsPorts(&record):
		return nil, fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, status)
	}
	release, err = e.network.Hold(c.ID, notify)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return release, nil
}
