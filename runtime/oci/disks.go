package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/trash"
)

// disks makes the directories for what containers write.
//
// What a container writes is bounded by giving it a file system of its own, in a file. It has
// everything of the host that the container can write to and that is not a mount of its user's: the
// upper layer of its root, and the files below /etc that an engine provides. The service keeps that
// from being unmounted until the container has ended: otherwise the end of its last process would
// wait until all its writes are on the host's disk, to be deleted then.
type disks struct {
	directory string // for tests of the host
	bytes     int64  // the bound; 0 for none
	// journaled is whether file systems are made such that they can be used after a crash of the
	// host.
	journaled bool
	trash     *trash.Trash
	log       zerolog.Logger

	mu     sync.Mutex
	format *disk.Format // nil until it was tested
}

// checkHost makes sure that this host can mount the file systems, unless there is no room to test
// it.
func (d *disks) checkHost(ctx context.Context) error {
	if d.bytes == 0 {
		return nil
	}
	_, err := d.tested(ctx)
	if diskFull(err) { // removals make room
		d.log.Warn().Err(err).Msg("disk full: no container starts until there is room")
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot bound the writes of sandboxes: %w", err)
	}
	return nil
}

// tested returns the format of the file systems. It makes and tests the format if that was not done
// yet.
func (d *disks) tested(ctx context.Context) (_ *disk.Format, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.format != nil {
		return d.format, nil
	}
	directory, err := os.MkdirTemp(d.directory, testPattern)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	durability := disk.Lost
	if d.journaled {
		durability = disk.Journaled
	}
	format, err := disk.NewFormat(ctx, directory, d.bytes, durability)
	if err != nil {
		return nil, err
	}
	made, err := format.Make(filepath.Join(directory, "filesystem"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(made.Discard(), made.Close()); err != nil {
		return nil, err
	}
	d.format = format
	return format, nil
}

// make makes the directories for what the container writes, empty, and root, where its root file
// system is mounted.
func (d *disks) make(ctx context.Context, c *containers.Container, root string) error {
	// There is something only after a start that failed, which may have run the container's
	// program; an overlay's directories cannot be used twice.
	if err := d.trash.Throw(c.Directory.Disk()); err != nil {
		return err
	}
	made := []string{c.Directory.Disk(), root}
	if d.bytes == 0 {
		made = append(made, c.Directory.Upper(), c.Directory.Work(), c.Directory.Etc())
	}
	for _, directory := range made {
		if err := os.Mkdir(directory, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // it becomes the container's root
			return err
		}
	}
	if d.bytes != 0 {
		return d.makeBounded(ctx, c)
	}
	// The container's root has the mode of upper, whatever the service's umask is.
	return os.Chmod(c.Directory.Upper(), 0o755) //nolint:gosec // as above
}

// makeBounded makes the file system that a container writes to, empty.
func (d *disks) makeBounded(ctx context.Context, c *containers.Container) error {
	format, err := d.tested(ctx)
	if err != nil {
		return fmt.Errorf("file system for what it writes: %w", err)
	}
	made, err := format.Make(c.Directory.Filesystem())
	if err != nil {
		return fmt.Errorf("file system for what it writes: %w", err)
	}
	c.SetDisk(made)
	// The container's root has the mode of upper.
	for _, directory := range []string{layout.Upper, layout.Work, layout.Etc} {
		if err := made.Mkdir(directory, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// reopen takes up what an earlier start of the container has written, and makes root. Whether that
// is bounded was decided then. Nothing below the directory for its writes is followed: the
// container has written it.
func (d *disks) reopen(c *containers.Container, root string) error {
	if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // it becomes the container's root
		return err
	}
	switch _, err := os.Lstat(c.Directory.Filesystem()); {
	case errors.Is(err, os.ErrNotExist):
		if err := d.checkUnbounded(c); err != nil {
			return err
		}
		return allowMount(c.Directory.Work())
	case err != nil:
		return err
	}
	opened, err := openBounded(c)
	if err != nil {
		return fmt.Errorf("file system for what it writes: %w", err)
	}
	c.SetDisk(opened)
	return allowMount(opened.Path(layout.Work))
}

// allowMount has the kernel mount an overlay again that was mounted as volatile. The kernel refuses
// that because the host may have crashed before the files were on the disk; those of a container
// that was suspended are.
func allowMount(work string) error {
	return os.RemoveAll(filepath.Join(work, "work", "incompat"))
}

// sync has what a container has written, none of whose processes is left, on the disk.
func (d *disks) sync(c *containers.Container) error {
	switch _, err := os.Lstat(c.Directory.Filesystem()); {
	case errors.Is(err, os.ErrNotExist):
		return syncFileSystem(c.Directory.Disk())
	case err != nil:
		return err
	}
	opened, err := openBounded(c)
	if err != nil {
		return err
	}
	err = syncFileSystem(opened.Path("."))
	return errors.Join(err, opened.Close(), syncFileSystem(c.Directory.Filesystem()))
}

// syncFileSystem syncs the file system of a file or directory, which is no symbolic link.
func syncFileSystem(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := unix.Syncfs(int(file.Fd())); err != nil {
		return errors.Join(os.NewSyscallError("syncfs", err), file.Close())
	}
	return file.Close()
}

// openBounded opens the file system of a container. If that is still in use, such as by the
// write-back of an earlier end, it is the same one.
func openBounded(c *containers.Container) (*disk.Disk, error) {
	attached, err := disk.FindAttached()
	if err != nil {
		return nil, err
	}
	opened, err := attached.Open(c.Directory.Filesystem())
	if errors.Is(err, os.ErrNotExist) {
		opened, err = disk.Reopen(c.Directory.Filesystem())
	}
	return opened, err
}

// checkUnbounded makes sure that the directories for the writes of a container are there. The error
// wraps [disk.ErrBroken] when they are not.
func (d *disks) checkUnbounded(c *containers.Container) error {
	for _, directory := range []string{c.Directory.Upper(), c.Directory.Work(), c.Directory.Etc()} {
		info, err := os.Lstat(directory)
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.IsDir() {
			return fmt.Errorf("%w: directory %s", disk.ErrBroken, filepath.Base(directory))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check makes sure, after a reboot, that what a container has written can be used. Only an error
// that wraps [disk.ErrBroken] is final.
func (d *disks) check(c *containers.Container) error {
	if _, err := os.Lstat(c.Directory.Filesystem()); errors.Is(err, os.ErrNotExist) {
		return d.checkUnbounded(c)
	}
	opened, err := openBounded(c)
	if err != nil {
		return err
	}
	return opened.Close()
}

// adopt opens the file system of a container that an earlier service has started.
func (d *disks) adopt(c *containers.Container, attached disk.Attached) {
	found, err := attached.Open(c.Directory.Filesystem())
	if errors.Is(err, os.ErrNotExist) { // its writes are not bounded
		return
	}
	if err != nil {
		d.log.Warn().Err(err).Str("container", c.Name).Msg("cannot attach the loop device of container: its removal will wait for write-back")
		return
	}
	c.SetDisk(found)
}

// drop ends the file system of a container that has ended, or is about to. It succeeds when there
// is none. What is kept is written back first, unless the container is being removed.
func (d *disks) drop(c *containers.Container) {
	d.end(c, c.TakeDisk())
}

// end is drop for a file system that was taken from a container; nil is none.
func (d *disks) end(c *containers.Container, dropped *disk.Disk) {
	if dropped == nil {
		return
	}
	var discarded error
	if record := c.Record(); !record.KeepsFiles() || c.Status() == engine.StatusRemoving {
		discarded = dropped.Discard()
	}
	if err := errors.Join(discarded, dropped.Close()); err != nil {
		d.log.Warn().Err(err).Str("container", c.Name).Msg("unmount of container file system deferred until write-back completes")
	}
}

// close closes the file systems of containers that go on.
func (d *disks) close(all []*containers.Container) error {
	var errs []error
	for _, c := range all {
		if taken := c.TakeDisk(); taken != nil {
			errs = append(errs, taken.Close())
		}
	}
	return errors.Join(errs...)
}

// diskPath returns the path of a directory of what the container writes, upper or etc, for this
// process.
func diskPath(c *containers.Container, directory string) string {
	if bounded := c.Disk(); bounded != nil {
		return bounded.Path(directory)
	}
	return filepath.Join(c.Directory.Disk(), directory)
}

// openEtc opens one of a container's own files of /etc.
func openEtc(c *containers.Container, name string) (*os.File, error) {
	if bounded := c.Disk(); bounded != nil {
		return bounded.Open(filepath.Join(layout.Etc, name))
	}
	return os.Open(filepath.Join(c.Directory.Etc(), name))
}

func diskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
