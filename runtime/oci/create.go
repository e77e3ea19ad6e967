package oci

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/images"
)

const maxNameBytes = 200

// validName is what containers, volumes and folders can be called. Volumes and folders are files of that name.
var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

func checkName(field, name string) error {
	if len(name) > maxNameBytes || !validName.MatchString(name) {
		return fmt.Errorf("%w: %s: %q must be 1 to %d letters, digits, _, . and -, and begin with a letter or digit",
			engine.ErrInvalid, field, name, maxNameBytes)
	}
	return nil
}

// Create implements [engine.Engine].
func (e *Engine) Create(ctx context.Context, spec engine.ContainerSpec) (id string, err error) {
	op := "create container " + spec.Name
	if e.closing.Err() != nil {
		return "", closedError(op)
	}
	if err := checkSpec(spec); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	handler, err := e.runtime(spec.Runtime)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	image, release, err := e.images.Hold(spec.ImageID)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	defer release() // from then on imagesInUse has it
	c, err := e.reserve(spec, handler)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", op, err)
			e.mu.Lock()
			delete(e.byName, spec.Name)
			e.mu.Unlock()
		}
	}()
	err = bundle.Check(bundle.Input{
		ID: c.id, Spec: spec, Image: bundle.Config(image.Config), Layers: image.Layers, RootFS: c.at.rootfs(),
		EtcFolder: c.at.etc(), Runtime: handler,
	})
	if err != nil {
		return "", err
	}
	if err := e.checkMounts(ctx, c, image); err != nil {
		return "", err
	}
	if err := e.keep(c); err != nil {
		return "", err
	}
	return c.id, nil
}

// keep makes a container whose name was reserved one that is found.
func (e *Engine) keep(c *container) error {
	if err := os.Mkdir(string(c.at), folderMode); err != nil {
		return err
	}
	if err := c.record.write(c.at); err != nil {
		return errors.Join(err, e.trash.throw(string(c.at)))
	}
	e.mu.Lock()
	e.byID[c.id] = c
	e.mu.Unlock()
	return nil
}

// reserve takes the container's name. Only Create finds the container by it until it has a record.
func (e *Engine) reserve(spec engine.ContainerSpec, handler bundle.Runtime) (*container, error) {
	id := newID()
	c := newContainer(e.layout.container(id), record{ID: id, Spec: spec, Runtime: spec.Runtime})
	if c.record.Runtime == "" {
		c.record.Runtime = handler.Name // so that a change of the default does not concern it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byName[spec.Name] != nil {
		return nil, engine.ErrExists
	}
	e.byName[spec.Name] = c
	return c, nil
}

// newID returns 32 random hexadecimal digits.
func newID() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// checkSpec refuses what breaks the contract, and what this package's own records, folders and network do not permit. The rest is for package
// bundle.
func checkSpec(spec engine.ContainerSpec) error {
	if err := spec.Check(); err != nil {
		return err
	}
	if err := checkName("name", spec.Name); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		var err error
		switch {
		case m.Volume != "":
			err = checkName("volume", m.Volume)
		case m.Folder != "":
			err = checkName("folder", m.Folder)
		}
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	_, err := publishAddress(spec)
	return err
}

// publishAddress returns the host's address that ports are published on; the zero value means all, as 0.0.0.0 does.
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

// checkMounts looks whether the sources of mounts are there and the image has a place for each, makes volumes that are not there, and fills those
// that are empty. They are opened again at the start.
func (e *Engine) checkMounts(ctx context.Context, c *container, image images.Image) error {
	if err := bundle.CheckTargets(image.Layers, c.record.Spec.Mounts); err != nil {
		return err
	}
	for _, m := range c.record.Spec.Mounts {
		if m.Volume != "" && m.SubPath == "" {
			if _, err := e.MakeVolume(ctx, m.Volume, nil); err != nil {
				return fmt.Errorf("mount %s: %w", m.Target, err)
			}
			if err := e.fillVolume(ctx, c, image, m); err != nil {
				return fmt.Errorf("mount %s: fill volume %s: %w", m.Target, m.Volume, err)
			}
		}
		source, err := e.openSource(m)
		if err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		_ = source.Close()
	}
	return nil
}
