package proof

import (
	"context"
	"fmt"
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Classes returns an error when the engine does not have the handler of a class. A handler that
// does not work shows when a sandbox of the class starts.
func (p Proof) Classes(ctx context.Context, classes lifecycle.RuntimeClasses) error {
	for _, class := range classes {
		if err := p.checkClass(ctx, class); err != nil {
			return fmt.Errorf("runtime.classes: %s: the handler %q: %w", class.Name, class.Handler, err)
		}
	}
	return nil
}

// checkClass creates a container that is never started, and removes it.
func (p Proof) checkClass(ctx context.Context, class lifecycle.RuntimeClass) (err error) {
	spec := engine.ContainerSpec{
		Name:       "sandbox-proof-" + p.Instance,
		ImageID:    p.ImageID,
		Labels:     p.labels("class"),
		Runtime:    class.Handler,
		Entrypoint: []string{filepath.Join(lifecycle.DaemonPath, "execd")},
		Network:    engine.NetworkNone,
		Security:   p.Security,
	}
	if err := p.Engine.Remove(ctx, spec.Name); err != nil { // a service that was killed may have left it
		return err
	}
	if _, err := p.Engine.Create(ctx, spec); err != nil {
		return err
	}
	return p.Engine.Remove(context.WithoutCancel(ctx), spec.Name)
}
