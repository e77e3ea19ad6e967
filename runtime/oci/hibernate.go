package oci

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/treecopy"
)

// Hibernate implements [engine.Snapshots]. The record says that the processes are on the disk
// before they end, and a container is not thawed before the record does not say so any more:
// whatever cuts the call off, either the frozen processes or those on the disk are the last ones.
func (e *Engine) Hibernate(ctx context.Context, id string) error {
	op := "hibernate container " + id
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	if err := e.hibernate(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, e.explainSnapshot(c, op, err))
	}
	return nil
}

func (e *Engine) hibernate(ctx context.Context, c *containers.Container) error {
	runtime, err := e.runtimes.get(c.Record().Runtime)
	if err != nil {
		return err
	}
	if err := keepsMemory(runtime); err != nil {
		return err
	}
	written := c.Record().Memory != nil
	switch status := c.Status(); {
	case status == engine.StatusRemoving:
		return fmt.Errorf("%w: it is being removed", engine.ErrNotFound)
	case status == engine.StatusStopped && written:
		return nil
	case status == engine.StatusExited && written:
		return e.launcher.finishHibernation(ctx, c)
	case status != engine.StatusFrozen:
		return fmt.Errorf("%w: it is %s", engine.ErrNotRunning, status)
	}
	if !written {
		if err := e.writeOwnMemory(ctx, c); err != nil {
			return err
		}
	}
	failpoint.Hit(MemoryWrittenFailpoint)
	// From here on a caller that has gone changes nothing.
	ctx = context.WithoutCancel(ctx)
	if err := e.processes.killAndWait(ctx, c); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, err) // it may end yet, and the call is repeated
	}
	failpoint.Hit(HibernatedFailpoint)
	return e.launcher.finishHibernation(ctx, c)
}

// writeOwnMemory writes the processes of a frozen container beside what it has written, and records
// that they are there. After an error nothing of them is left. A write is not cut off for a caller
// that has gone: the runtime would go on with it.
func (e *Engine) writeOwnMemory(ctx context.Context, c *containers.Container) (err error) {
	directory := c.Directory.Memory()
	if err := e.launcher.disks.trash.Throw(directory); err != nil { // of a call that was cut off
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.launcher.disks.trash.Throw(directory))
		}
	}()
	memory, err := e.describeMemory(c)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	if err := os.Mkdir(directory, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(directory, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	memory.Bytes, err = e.checkpoint(context.WithoutCancel(ctx), c, directory, &treecopy.Copy{Staging: file})
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	// The processes go on with the files that they have written last, also after a loss of power.
	if err := e.launcher.disks.sync(c); err != nil {
		return err
	}
	if err := os.NewSyscallError("syncfs", unix.Syncfs(int(file.Fd()))); err != nil {
		return err
	}
	return c.Update(func(r *containers.Record) {
		r.Memory, r.Run.Suspends, r.Volatile = memory, true, r.Volatile || !r.Run.Keeps
	})
}

// finishHibernation makes a container whose processes have ended, and are on the disk, one that is
// stopped. The caller holds the container's lock.
func (l *launcher) finishHibernation(ctx context.Context, c *containers.Container) error {
	if err := l.disks.sync(c); err != nil { // a container that is stopped outlives a reboot of the host
		return fmt.Errorf("sync its files: %w", err)
	}
	return errors.Join(c.SetStopped(), l.undoEarlier(ctx, c))
}

// forgetMemory removes the processes of a container that are on the disk: those that it has are
// about to run, or it has none. The caller holds the container's lock.
func (l *launcher) forgetMemory(c *containers.Container) error {
	if c.Record().Memory != nil {
		if err := c.Update(func(r *containers.Record) { r.Memory = nil }); err != nil {
			return err
		}
	}
	return l.disks.trash.Throw(c.Directory.Memory())
}

// thaw thaws a container, whose processes are not those on the disk from then on. The caller holds
// the container's lock.
func (e *Engine) thaw(ctx context.Context, c *containers.Container) error {
	if c.Record().Memory != nil {
		if err := e.launcher.forgetMemory(c); err != nil {
			return err
		}
	}
	return e.processes.thaw(ctx, c)
}

// restoreOwn starts a container with the processes that it had when it was hibernated; see
// [Engine.restore].
func (e *Engine) restoreOwn(ctx context.Context, s start, memory snapshots.Memory) (done bool, err error) {
	done, err = e.restoreFrom(ctx, s, memory, s.container.Directory.Memory(), e.checkMemory(s.container, memory))
	if !done || err == nil {
		if thrown := e.launcher.disks.trash.Throw(s.container.Directory.Memory()); thrown != nil {
			s.log.Warn().Err(thrown).Str("container", s.container.Name).Msg("cannot remove the memory of a container that was restored; retried at its removal")
		}
	}
	return done, err
}
