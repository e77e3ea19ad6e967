package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
)

// Suspend implements [engine.Snapshots]. The record says that the files are kept before anything
// ends: whatever cuts the call off, they can be started on.
func (e *Engine) Suspend(ctx context.Context, id string, grace time.Duration) error {
	op := "suspend container " + id
	if err := e.keep(ctx, op, id); err != nil {
		return err
	}
	failpoint.Hit(KeepingFailpoint)
	if err := e.Stop(ctx, id, grace); err != nil {
		return err
	}
	failpoint.Hit(SuspendedFailpoint)
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	record := c.Record()
	switch status := c.Status(); {
	case status == engine.StatusStopped && record.Memory != nil: // it was hibernated
		return e.launcher.forgetMemory(c)
	case status == engine.StatusStopped:
		return nil
	case status == engine.StatusRemoving:
		return fmt.Errorf("%s: %w: it is being removed", op, engine.ErrNotFound)
	case status != engine.StatusExited || !record.KeepsFiles():
		return fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, status)
	}
	if err := e.disks.sync(c); err != nil { // a container that is stopped outlives a reboot of the host
		return fmt.Errorf("%s: sync its files: %w", op, err)
	}
	if err := errors.Join(c.SetStopped(), e.launcher.undoEarlier(ctx, c)); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// keep records that what a container has written is of use once its processes are gone.
func (e *Engine) keep(ctx context.Context, op, id string) error {
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	record := c.Record()
	switch {
	case record.Removing || c.Status() == engine.StatusRemoving:
		return fmt.Errorf("%s: %w: it is being removed", op, engine.ErrNotFound)
	case record.Stopped, record.Started() && record.Run.Suspends:
		return nil
	case !c.Alive() && !record.KeepsFiles():
		return fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, c.Status())
	}
	err = c.Update(func(r *containers.Record) { r.Run.Suspends, r.Volatile = true, r.Volatile || !r.Run.Keeps })
	if diskFull(err) {
		return fmt.Errorf("%s: %w: %w", op, engine.ErrNoRoom, err)
	}
	return err
}
