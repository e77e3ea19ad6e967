package oci

import (
	"context"
	"errors"
	"fmt"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
)

// Rollback implements [engine.Snapshots]. The processes get no time to end by themselves.
func (e *Engine) Rollback(ctx context.Context, id, name string) error {
	op := "roll container " + id + " back to snapshot " + name
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.Unlock()
	if c.Status() == engine.StatusRemoving {
		return fmt.Errorf("%s: %w: it is being removed", op, engine.ErrNotFound)
	}
	record, release, err := e.snapshots.Hold(name, c.Record().Spec.ImageID)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer release() // which also frees what the container lay on
	restore := ""
	if record.Memory != nil {
		if err := e.checkMemory(c, *record.Memory); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		restore = record.ID
	}
	if err := e.launcher.rollback(ctx, c, record.Chain(), restore); err != nil {
		if diskFull(err) {
			err = fmt.Errorf("%w: %w", engine.ErrNoRoom, err)
		}
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// rollback ends the processes of a container and has the next start begin on the snapshots of base,
// with the processes of the snapshot restore where that is not empty. The caller holds the
// container's lock.
func (l *launcher) rollback(ctx context.Context, c *containers.Container, base []string, restore string) error {
	// Before anything ends: on a disk that is full the container runs on as it was.
	commit, err := c.PrepareRollback(base, restore)
	if err != nil {
		return err
	}
	if c.Alive() {
		if err := l.processes.killAndWait(ctx, c); err != nil {
			return err
		}
	}
	failpoint.Hit(KilledFailpoint)
	if err := commit(); err != nil {
		return err
	}
	failpoint.Hit(RolledBackFailpoint)
	return l.finishRollback(ctx, c)
}

// finishRollback removes what the last start of a container that was rolled back has made, and what
// the container has written. The caller holds the container's lock.
func (l *launcher) finishRollback(ctx context.Context, c *containers.Container) error {
	if dropped := c.TakeDisk(); dropped != nil { // nothing of it is written back
		if err := errors.Join(dropped.Discard(), dropped.Close()); err != nil {
			l.log.Warn().Err(err).Str("container", c.Name).Msg("unmount of container file system deferred until write-back completes")
		}
	}
	if err := l.undoEarlier(ctx, c); err != nil {
		return err
	}
	return errors.Join(l.disks.trash.Throw(c.Directory.Disk()), l.disks.trash.Throw(c.Directory.Memory()))
}
