package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/keeper"
)

// killTimeout bounds how long processes that were killed take to be gone: one that waits for a disk takes as long as the disk.
const killTimeout = 20 * time.Second

// Stop implements [engine.Engine].
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	op := "stop container " + id
	c, err := e.terminate(ctx, op, id)
	if c == nil || err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.ended:
		return nil
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", op, ctx.Err())
	case <-e.closing.Done():
		return closedError(op)
	case <-timer.C:
	}
	if err := e.killAndWait(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// terminate sends SIGTERM to the first process of a container, which thaws to get it. The container is nil when nothing of it runs.
func (e *Engine) terminate(ctx context.Context, op, id string) (*container, error) {
	c, err := e.holdRunning(ctx, op, id)
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.release()
	err = e.signal(c, unix.SIGTERM)
	if err == nil {
		err = e.thaw(ctx, c)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return c, nil
}

// signal sends a signal to the first process. One that is gone is no error.
func (e *Engine) signal(c *container, signal unix.Signal) error {
	e.mu.Lock()
	process := c.record.Run.Process
	e.mu.Unlock()
	fd, err := process.Open()
	if err == nil {
		err = unix.PidfdSendSignal(fd, signal, nil, 0)
		_ = unix.Close(fd)
	}
	if errors.Is(err, keeper.ErrGone) || err == unix.ESRCH {
		return nil
	}
	return err
}

// killAndWait kills everything in the container and waits until its end is known.
func (e *Engine) killAndWait(ctx context.Context, c *container) error {
	if err := e.kill(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	select {
	case <-c.ended:
		return nil
	case <-c.gone:
		return nil
	case <-e.closing.Done():
		return closedError("kill")
	case <-ctx.Done():
		return fmt.Errorf("the container was killed and has not ended: %w", ctx.Err())
	}
}

func (e *Engine) kill(c *container) error {
	// The first process takes all others of its PID namespace with it; killing both costs little, and either may be the one that works.
	first, group := e.signal(c, unix.SIGKILL), e.cgroups.Group(c.id).Kill()
	if first == nil || group == nil {
		return nil
	}
	return errors.Join(first, group)
}

// holdRunning finds a container that runs or is frozen, and waits for its turn. The caller releases it.
func (e *Engine) holdRunning(ctx context.Context, op, id string) (*container, error) {
	c, err := e.hold(ctx, op, id)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	status := c.status()
	e.mu.Unlock()
	switch status {
	case engine.StatusRunning, engine.StatusFrozen:
		return c, nil
	case engine.StatusRemoving:
		err = engine.ErrNotFound
	default:
		err = engine.ErrNotRunning
	}
	c.release()
	return nil, fmt.Errorf("%s: %w: it is %s", op, err, status)
}

// Remove implements [engine.Engine]. It returns when no process, port or record of the container is left; its files are removed behind.
func (e *Engine) Remove(ctx context.Context, id string) error {
	op := "remove container " + id
	c, err := e.hold(ctx, op, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.release()
	if err := e.remove(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// remove removes a container. The caller holds the turn.
func (e *Engine) remove(ctx context.Context, c *container) error {
	e.mu.Lock()
	c.removing = true
	started, ended := c.record.Run != nil && c.record.Run.Process.PID != 0, c.end != nil
	e.mu.Unlock()
	if c.record.Run != nil && !c.record.Removing { // else there is nothing but the folder
		err := e.update(c, func(r *record) { r.Removing = true })
		if diskFull(err) {
			// It makes room. If the service is killed before the end, the next one finds a container that has ended.
			e.log.Warn().Err(err).Str("container", c.name).Msg("the disk is full: it is removed without a record of that")
		} else if err != nil {
			return err
		}
	}
	if started && !ended {
		e.dropDisk(c) // the end of its last process does not wait until everything is written
		err := e.killAndWait(ctx, c)
		// Without a keeper, and when none can be started, no end is recorded; that does not keep what is dead.
		if err != nil && (ctx.Err() != nil || e.closing.Err() != nil || c.record.Run.Process.Alive()) {
			return err
		}
	}
	if c.record.Run != nil {
		if err := e.releaseRun(ctx, c); err != nil {
			return err
		}
	}
	if err := e.trash.throw(string(c.at)); err != nil {
		return err
	}
	e.releaseUsers(c.record.Run)
	e.forget(c)
	return nil
}

// forget drops a container that has no record any more.
func (e *Engine) forget(c *container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byID, c.id)
	if e.byName[c.name] == c {
		delete(e.byName, c.name)
	}
	close(c.gone)
	e.emit(c, engine.EventRemoved)
}

// releaseRun removes everything that a start has made, or may have, at the kernel, the keeper and the runtime. What is gone is no error.
func (e *Engine) releaseRun(ctx context.Context, c *container) error {
	id := c.id
	// First: it waits for a start in progress, whose thread in the keeper would make the keeper a member of the group.
	if err := e.keeper.Forget(id); err != nil {
		return err
	}
	e.mu.Lock()
	c.early = nil // it is not the end of what another start makes
	e.mu.Unlock()
	errs := []error{e.cgroups.Group(id).Remove(), e.deleteState(ctx, c.record.Runtime, id)}
	if c.record.Spec.OwnNetwork() {
		errs = append(errs, e.network.Detach(id))
	}
	e.releaseSources(id)
	e.dropDisk(c)
	if err := os.Remove(e.layout.root(id)); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// deleteState removes what the runtime has of a container.
func (e *Engine) deleteState(ctx context.Context, name, id string) error {
	folder := e.layout.runtime(name)
	state, err := stateFiles(folder, id)
	if err != nil || len(state) == 0 {
		return err
	}
	if runtime, err := e.runtime(name); err == nil {
		if args := runtime.DeleteArgs(folder, id); len(args) > 0 {
			if _, err := runCommand(ctx, args); err != nil {
				e.log.Warn().Err(err).Str("container_id", id).Msg("the runtime cannot delete its state, so the service does")
			}
		}
	}
	for _, path := range state {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// stateFiles returns what a runtime has of a container: a folder of its id, or files whose names contain it.
func stateFiles(folder, id string) ([]string, error) {
	path := filepath.Join(folder, id)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return []string{path}, err
	}
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var found []string
	for _, entry := range entries {
		if strings.Contains(entry.Name(), id) {
			found = append(found, filepath.Join(folder, entry.Name()))
		}
	}
	return found, err
}
