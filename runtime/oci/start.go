package oci

import (
	"context"
	"fmt"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
)

// Start implements [engine.Engine]. A container that has ended can be started again only if it
// keeps its files.
func (e *Engine) Start(ctx context.Context, id string) error {
	op := "start container " + id
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	record := c.Record()
	switch status := c.Status(); {
	case status == engine.StatusRunning, status == engine.StatusFrozen:
		return nil
	case status == engine.StatusCreated, status == engine.StatusStopped:
	case status == engine.StatusExited && record.KeepsFiles():
		if err := c.SetStopped(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	default:
		return fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, status)
	}
	if err := e.launch(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// launch starts a container, on what it has written if it was stopped, else from its image alone,
// or on a snapshot. The caller holds the container's lock.
func (e *Engine) launch(ctx context.Context, c *containers.Container) error {
	if err := e.launcher.undoEarlier(ctx, c); err != nil {
		return err
	}
	record := c.Record()
	spec := record.Spec
	image, release, err := e.images.Hold(spec.ImageID)
	if err != nil {
		return err
	}
	defer release()
	chain, err := e.snapshots.Trees(record.Base)
	if err != nil {
		return err
	}
	again := record.Stopped && !record.Fresh
	keeps := e.launcher.keepFiles && spec.KeepFiles
	if again {
		keeps = !record.Volatile
	}
	s := start{
		launcher: e.launcher, container: c, spec: spec, image: image, chain: chain, imagesIn: e.layout.Images(),
		repeated: record.Stopped, again: again, keeps: keeps,
	}
	if record.Restore != "" {
		if done, err := e.restore(ctx, s, record.Restore); done {
			return err
		}
	}
	if record.Memory != nil {
		if done, err := e.restoreOwn(ctx, s, *record.Memory); done {
			return err
		}
	}
	return s.run(ctx)
}
