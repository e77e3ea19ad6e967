package oci

import (
	"context"
	"fmt"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
)

// Start implements [engine.Engine]. A container that has ended cannot be started again.
func (e *Engine) Start(ctx context.Context, id string) error {
	op := "start container " + id
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	switch status := c.Status(); status {
	case engine.StatusRunning, engine.StatusFrozen:
		return nil
	case engine.StatusCreated:
	default:
		return fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, status)
	}
	if err := e.launch(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// launch starts a container from its image. The caller holds the container's lock.
func (e *Engine) launch(ctx context.Context, c *containers.Container) error {
	if err := e.launcher.undoEarlier(ctx, c); err != nil {
		return err
	}
	spec := c.Record().Spec
	image, release, err := e.images.Hold(spec.ImageID)
	if err != nil {
		return err
	}
	defer release()
	s := &start{launcher: e.launcher, container: c, spec: spec, image: image, imagesIn: e.layout.Images()}
	return s.run(ctx)
}
