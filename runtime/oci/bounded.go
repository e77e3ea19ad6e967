package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sandbox.internal/runtime/oci/disk"
)

// What a container writes is bounded by giving it a file system of its own, in a file. It has everything of the host that the container can
// write to and that is not a mount of its user's: the upper layer of its root, and the files below /etc that an engine provides. The service
// keeps that from being unmounted until the container has ended: otherwise the end of its last process would wait until all that it wrote is
// on the host's disk, to be deleted then.

// proveDisk makes sure that this host can mount the file systems, unless there is no room to try.
func (e *Engine) proveDisk(ctx context.Context) error {
	if e.options.DiskBytes == 0 {
		return nil
	}
	_, err := e.diskFormat(ctx)
	if diskFull(err) { // removals make room
		e.log.Warn().Err(err).Msg("the disk is full: no container starts until there is room")
		return nil
	}
	if err != nil {
		return fmt.Errorf("what sandboxes write cannot be bounded: %w", err)
	}
	return nil
}

// diskFormat returns the format of what containers write. It makes that, and tries it, if that was not done yet.
func (e *Engine) diskFormat(ctx context.Context) (_ *disk.Format, err error) {
	e.formatMu.Lock()
	defer e.formatMu.Unlock()
	if e.format != nil {
		return e.format, nil
	}
	trial, err := os.MkdirTemp(e.layout.data, ".trial-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(trial)) }()
	format, err := disk.NewFormat(ctx, trial, e.options.DiskBytes)
	if err != nil {
		return nil, err
	}
	made, err := format.Make(filepath.Join(trial, "filesystem"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(made.Discard(), made.Close()); err != nil {
		return nil, err
	}
	e.format = format
	return format, nil
}

// makeBounded makes the file system that a container writes to, empty.
func (e *Engine) makeBounded(ctx context.Context, c *container) error {
	format, err := e.diskFormat(ctx)
	if err != nil {
		return fmt.Errorf("file system for what it writes: %w", err)
	}
	made, err := format.Make(c.at.filesystem())
	if err != nil {
		return fmt.Errorf("file system for what it writes: %w", err)
	}
	e.mu.Lock()
	c.disk = made
	e.mu.Unlock()
	// The container's root has the mode of upper.
	for _, folder := range []string{upperFolder, workFolder, etcFolder} {
		if err := made.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// etcPath returns the folder with a container's own files of /etc, for this process. The caller holds the turn.
func (c *container) etcPath() string {
	if c.disk != nil {
		return c.disk.Path(etcFolder)
	}
	return c.at.etc()
}

// openEtc opens one of these files of any container.
func (e *Engine) openEtc(c *container, name string) (*os.File, error) {
	e.mu.Lock()
	bounded := c.disk
	e.mu.Unlock()
	if bounded != nil {
		return bounded.Open(filepath.Join(etcFolder, name))
	}
	return os.Open(filepath.Join(c.at.etc(), name))
}

// adoptDisk opens the file system of a container that an earlier service has started.
func (e *Engine) adoptDisk(c *container, attached disk.Attached) {
	found, err := attached.Open(c.at.filesystem())
	if errors.Is(err, os.ErrNotExist) { // its writing is not bounded
		return
	}
	if err != nil {
		e.log.Warn().Err(err).Str("container", c.name).Msg("its end may take as long as what it wrote takes to be on the disk")
		return
	}
	e.mu.Lock()
	c.disk = found
	e.mu.Unlock()
}

// dropDisk ends the file system of a container that has ended, or is about to. One without is no error.
func (e *Engine) dropDisk(c *container) {
	e.mu.Lock()
	dropped := c.disk
	c.disk = nil
	e.mu.Unlock()
	if dropped == nil {
		return
	}
	if err := errors.Join(dropped.Discard(), dropped.Close()); err != nil {
		e.log.Warn().Err(err).Str("container", c.name).Msg("its file system is unmounted when everything in it is written")
	}
}

// closeDisks lets go of the file systems of containers that go on.
func (e *Engine) closeDisks() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, c := range e.byID {
		if c.disk != nil {
			errs = append(errs, c.disk.Close())
			c.disk = nil
		}
	}
	return errors.Join(errs...)
}
