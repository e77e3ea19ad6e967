package box

import (
	"context"
	"fmt"
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// checkClasses returns an error when the engine does not have the handler of a class. Whether the
// handler works shows when a sandbox of the class starts.
func (c *Containers) checkClasses(ctx context.Context) error {
	for _, class := range c.options.RuntimeClasses {
		if err := c.checkClass(ctx, class); err != nil {
			return fmt.Errorf("runtime.classes: %s: the handler %q: %w", class.Name, class.Handler, err)
		}
	}
	return nil
}

// checkClass creates a container that is never started, and removes it.
func (c *Containers) checkClass(ctx context.Context, class lifecycle.RuntimeClass) (err error) {
	spec := engine.ContainerSpec{
		Name:       "sandbox-proof-" + c.options.Instance,
		ImageID:    c.daemonImage(),
		Labels:     map[string]string{labelInstance: c.options.Instance, labelProof: "class"},
		Runtime:    class.Handler,
		Entrypoint: []string{filepath.Join(lifecycle.DaemonPath, "execd")},
		Network:    engine.NetworkNone,
		Security:   c.options.Security,
	}
	if err := c.options.Engine.Remove(ctx, spec.Name); err != nil { // a service that was killed may have left it
		return err
	}
	if _, err := c.options.Engine.Create(ctx, spec); err != nil {
		return err
	}
	return c.options.Engine.Remove(context.WithoutCancel(ctx), spec.Name)
}
