package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
)

// Stop implements [engine.Engine].
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	op := "stop container " + id
	c, err := e.containers.LockAlive(ctx, op, id)
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	err = e.processes.signal(c, unix.SIGTERM)
	if err == nil { // a frozen process gets the signal once it thaws
		err = e.thaw(ctx, c)
	}
	c.Unlock() // the end is not awaited with the lock
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.Ended():
		return nil
	case <-c.Gone():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", op, ctx.Err())
	case <-e.background.Closing().Done():
		return background.ClosedError(op)
	case <-timer.C:
	}
	if err := e.processes.killAndWait(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// Freeze implements [engine.Engine].
func (e *Engine) Freeze(ctx context.Context, id string) error {
	return e.whileAlive(ctx, "freeze container "+id, id, e.processes.freeze)
}

// Thaw implements [engine.Engine].
func (e *Engine) Thaw(ctx context.Context, id string) error {
	return e.whileAlive(ctx, "thaw container "+id, id, func(ctx context.Context, c *containers.Container) error {
		if err := e.network.Reopen(c.ID); err != nil {
			return err
		}
		return e.thaw(ctx, c)
	})
}

// whileAlive calls do with a container that runs or is frozen, with its lock.
func (e *Engine) whileAlive(ctx context.Context, op, id string, do func(context.Context, *containers.Container) error) error {
	c, err := e.containers.LockAlive(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	if err := do(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// Remove implements [engine.Engine]. It returns when no process, port or record of the container is
// left; its files are removed behind.
func (e *Engine) Remove(ctx context.Context, id string) error {
	op := "remove container " + id
	c, err := e.containers.Lock(ctx, op, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Unlock()
	if err := e.launcher.remove(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	e.snapshots.Free()
	return nil
}
