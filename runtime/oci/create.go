package oci

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
)

// Create implements [engine.Engine].
func (e *Engine) Create(ctx context.Context, spec engine.ContainerSpec) (id string, err error) {
	op := "create container " + spec.Name
	if err := e.background.Check(op); err != nil {
		return "", err
	}
	if err := checkSpec(spec); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	handler, err := e.runtimes.get(spec.Runtime)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	image, release, err := e.images.Hold(spec.ImageID)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	defer release() // from then on the registry has it
	base, releaseBase, err := e.holdBase(spec)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	defer releaseBase()
	// The handler's name, so that a change of the default does not concern the container.
	c, err := e.containers.Reserve(spec, cmp.Or(spec.Runtime, handler.Name), base)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", op, err)
			e.containers.Drop(c)
		}
	}()
	err = bundle.Check(bundle.Input{
		ID: c.ID, Spec: spec, Image: bundle.Config(image.Config), Layers: image.Layers, RootFS: c.Directory.RootFS(),
		EtcDirectory: c.Directory.Etc(), Runtime: handler,
	})
	if err != nil {
		return "", err
	}
	chain, err := e.snapshots.Trees(base)
	if err != nil {
		return "", err
	}
	if err := e.checkMounts(ctx, c, image.Layers, chain); err != nil {
		return "", err
	}
	if err := e.containers.Add(c); err != nil {
		return "", err
	}
	return c.ID, nil
}

// checkSpec refuses what breaks the contract, and what this package's own records, directories and
// network do not permit. The rest is for package bundle.
func checkSpec(spec engine.ContainerSpec) error {
	if err := spec.Check(); err != nil {
		return err
	}
	if err := layout.CheckName("name", spec.Name); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		var err error
		switch {
		case m.Volume != "":
			err = layout.CheckName("volume", m.Volume)
		case m.Directory != "":
			err = layout.CheckName("directory", m.Directory)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	_, err := publishAddress(spec)
	return err
}

// publishAddress returns the host's address that ports are published on; the zero value means all,
// as 0.0.0.0 does.
func publishAddress(spec engine.ContainerSpec) (netip.Addr, error) {
	if spec.PublishIP == "" {
		return netip.Addr{}, nil
	}
	address, err := netip.ParseAddr(spec.PublishIP)
	if err != nil || !address.Unmap().Is4() {
		return netip.Addr{}, fmt.Errorf("%w: publish address: %q is not an IPv4 address", engine.ErrInvalid, spec.PublishIP)
	}
	return address.Unmap(), nil
}

// checkMounts looks whether the sources of mounts are there and the layers, of the image and of
// snapshots, have a place for each, makes volumes that are not there, and fills those that are
// empty with what the image has: how much there is in a snapshot, its container has decided. They
// are opened again at the start.
func (e *Engine) checkMounts(ctx context.Context, c *containers.Container, layers, chain []string) error {
	mounts := c.Record().Spec.Mounts
	if err := bundle.CheckTargets(slices.Concat(layers, chain), mounts); err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Volume != "" && m.SubPath == "" {
			if _, err := e.volumes.Make(m.Volume, nil); err != nil {
				return fmt.Errorf("mount %s: %w", m.Target, err)
			}
			if err := e.volumes.Fill(ctx, c.ID, layers, m); err != nil {
				return fmt.Errorf("mount %s: fill volume %s: %w", m.Target, m.Volume, err)
			}
		}
		source, err := e.volumes.Open(m)
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		_ = source.Close()
	}
	return nil
}
