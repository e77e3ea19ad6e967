package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/network"
)

// undoTimeout bounds how long a failed start takes to remove what it has made.
const undoTimeout = 20 * time.Second

// undo removes what a start has made that failed, and records and returns the cause. The caller
// holds the container's lock.
func (l *launcher) undo(ctx context.Context, c *containers.Container, cause error) error {
	reason := cause.Error()
	ctx = context.WithoutCancel(ctx)
	if errors.Is(cause, engine.ErrUnavailable) { // the keeper may have been killed
		if err := l.killOrphans(ctx); err != nil {
			l.log.Warn().Err(err).Msg("cannot kill orphans of the previous keeper; retried at service start")
		}
	}
	had := c.Record().Run
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	if err := l.release(ctx, c); err != nil {
		// The record still says that something is there: the removal tries again.
		l.log.Error().Err(err).Str("container", c.Name).Msg("cleanup after failed start failed; retried at the next start or removal")
		return errors.Join(cause, c.Update(func(r *containers.Record) { r.StartError = reason }))
	}
	if err := c.Update(func(r *containers.Record) { r.Run, r.StartError = nil, reason }); err != nil {
		return errors.Join(cause, err)
	}
	l.users.release(had)
	return cause
}

// undoEarlier removes what an earlier start has made, where that could not be undone then. The
// caller holds the container's lock.
func (l *launcher) undoEarlier(ctx context.Context, c *containers.Container) error {
	had := c.Record().Run
	if had == nil {
		return nil
	}
	if err := l.release(ctx, c); err != nil {
		return fmt.Errorf("undo an earlier start: %w", err)
	}
	if err := c.Update(func(r *containers.Record) { r.Run = nil }); err != nil {
		return err
	}
	l.users.release(had)
	return nil
}

// remove removes a container. The caller holds the container's lock.
func (l *launcher) remove(ctx context.Context, c *containers.Container) error {
	c.SetRemoving()
	record, ended := c.Record(), c.HasEnded()
	if (record.Run != nil || record.Stopped) && !record.Removing { // else there is nothing but the directory
		err := c.Update(func(r *containers.Record) { r.Removing = true })
		if diskFull(err) {
			// It makes room. If the service is killed before the end, the next one finds a
			// container that has ended.
			l.log.Warn().Err(err).Str("container", c.Name).Msg("disk full: removing container without writing its record")
		} else if err != nil {
			return err
		}
	}
	if record.Started() && !ended {
		l.disks.drop(c) // the end of its last process does not wait for write-back
		err := l.processes.killAndWait(ctx, c)
		// Without a keeper, and when none can be started, no end is recorded; that does not keep
		// what is dead.
		if err != nil && (ctx.Err() != nil || l.background.Closing().Err() != nil || record.Run.Process.Alive()) {
			return err
		}
	}
	if record.Run != nil {
		if err := l.release(ctx, c); err != nil {
			return err
		}
	}
	if err := l.network.Detach(c.ID); err != nil { // the ports that it has kept
		return err
	}
	// The ids are free once nothing has them on the disk.
	if err := l.containers.Remove(c); err != nil {
		return err
	}
	l.users.release(record.Run)
	return nil
}

// release removes everything that a start has made, or may have, at the kernel, the keeper and the
// runtime. It succeeds when nothing is left. The caller holds the container's lock.
func (l *launcher) release(ctx context.Context, c *containers.Container) error {
	// First: it waits for a start in progress, whose thread in the keeper would make the keeper a
	// member of the group.
	if err := l.keeper.Forget(c.ID); err != nil {
		return err
	}
	c.DropEarlyEnd()
	record := c.Record()
	errs := []error{l.cgroups.Group(c.ID).Remove(), l.deleteState(ctx, record.Runtime, c.ID)}
	if record.Spec.OwnNetwork() {
		errs = append(errs, detach(l.network, c))
	}
	l.processors.Release(c.ID)
	l.sources.Release(c.ID)
	l.disks.drop(c)
	if err := os.Remove(l.layout.Root(c.ID)); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// detach closes the published ports of a container. One that can be started again keeps them: the
// same ones lead to it then.
func detach(n *network.Network, c *containers.Container) error {
	if record := c.Record(); keepsPorts(&record) {
		return n.DetachKeeping(c.ID)
	}
	return n.Detach(c.ID)
}

// keepsPorts reports whether a container keeps its published ports while its processes are gone.
func keepsPorts(record *containers.Record) bool {
	return record.KeepsFiles() && !record.Removing && record.Spec.OwnNetwork()
}

// deleteState removes what the runtime has of a container.
func (l *launcher) deleteState(ctx context.Context, name, id string) error {
	directory := l.layout.Runtime(name)
	state, err := stateFiles(directory, id)
	if err != nil || len(state) == 0 {
		return err
	}
	if runtime, err := l.runtimes.get(name); err == nil {
		if args := runtime.DeleteArgs(directory, id); len(args) > 0 {
			if _, err := runCommand(ctx, args); err != nil {
				l.log.Warn().Err(err).Str("container_id", id).Msg("OCI runtime cannot delete its state: removing its files")
			}
		}
	}
	for _, path := range state {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// stateFiles returns what a runtime has of a container: a directory of its id, or files whose names
// contain it.
func stateFiles(directory, id string) ([]string, error) {
	path := filepath.Join(directory, id)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return []string{path}, err
	}
	entries, err := os.ReadDir(directory)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var found []string
	for _, entry := range entries {
		if strings.Contains(entry.Name(), id) {
			found = append(found, filepath.Join(directory, entry.Name()))
		}
	}
	return found, err
}
