package oci

import (
	"context"
	"fmt"
)

// MakeVolume implements [engine.Engine].
func (e *Engine) MakeVolume(_ context.Context, name string, labels map[string]string) (map[string]string, error) {
	op := "make volume " + name
	if err := e.background.Check(op); err != nil {
		return nil, err
	}
	has, err := e.volumes.Make(name, labels)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return has, nil
}

// VolumeLabels implements [engine.Engine].
func (e *Engine) VolumeLabels(_ context.Context, name string) (map[string]string, error) {
	op := "look for volume " + name
	if err := e.background.Check(op); err != nil {
		return nil, err
	}
	labels, err := e.volumes.Labels(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return labels, nil
}

// EnsureDirectory implements [engine.Engine].
func (e *Engine) EnsureDirectory(ctx context.Context, name, imageID, inside string, labels map[string]string) error {
	op := "make directory " + name
	if err := e.background.Check(op); err != nil {
		return err
	}
	if err := e.volumes.EnsureDirectory(ctx, name, imageID, inside, labels); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
