package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Restart starts the box of a record again whose processes are gone and whose files are kept, or
// continues an interrupted restart, and returns once the sandbox is usable, with the same proof as
// [Containers.Launch]. The container is the one that Launch has made: its image, environment,
// limits and token are as they were; its address and its published port are others.
//
// It returns [lifecycle.ErrBoxUnavailable] while the engine does not answer, [lifecycle.ErrNoBox],
// ctx's error, or a *[lifecycle.BoxFailure]; then nothing of the box runs, its files are there, and
// a later call may succeed.
func (c *Containers) Restart(ctx context.Context, record lifecycle.Record, launch lifecycle.Launch) (lifecycle.Place, error) {
	record.Stopped = false // what ends from here on has ended
	l := &launching{Launch: launch, containers: c, record: record, name: containerName(record.Box)}
	place, err := l.restart(ctx)
	switch {
	case err == nil || ctx.Err() != nil:
		return place, err
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, engine.ErrNotFound):
		return place, translated(err)
	}
	failed := failure(wrongTarget(record.Spec.Volumes, err))
	c.stopAgain(ctx, record)
	return lifecycle.Place{}, failed
}

func (l *launching) restart(ctx context.Context) (lifecycle.Place, error) {
	e := l.containers.options.Engine
	container, err := e.Inspect(ctx, l.name)
	switch {
	case err != nil:
		return lifecycle.Place{}, err
	case container.Status == engine.StatusRemoving:
		return lifecycle.Place{}, fmt.Errorf("%w: it is being removed", engine.ErrNotFound)
	case container.Status == engine.StatusFrozen:
		err = e.Thaw(ctx, l.name)
	case container.Status != engine.StatusRunning:
		err = l.startAgain(ctx)
	}
	if err != nil {
		return lifecycle.Place{}, err
	}
	place, err := l.awaitDaemon(ctx)
	if err != nil {
		return place, err
	}
	if container, err = e.Inspect(ctx, l.name); err != nil {
		return lifecycle.Place{}, err
	}
	place.Restored, place.RestoreError = container.Restored, container.RestoreError
	return place, nil
}

// startAgain starts the container, after the one that owns its network, which is a new one.
func (l *launching) startAgain(ctx context.Context) error {
	c := l.containers
	if err := c.fitsHost(l.record.Spec); err != nil {
		return err
	}
	owner := l.record.Sandbox.Owner
	if err := c.starts.Take(ctx, owner); err != nil {
		return err
	}
	defer c.starts.Give(owner)
	defer c.spares.Begin()()
	if err := l.makeNetwork(ctx); err != nil {
		return err
	}
	if err := c.ownVolumes(ctx, l.record); err != nil {
		return err
	}
	// The rules may have changed, and the disk. The engine mounts what it was given, and follows no
	// symbolic link to it any more.
	mounts, release, err := c.hostPaths.PinAgain(l.record)
	if err != nil {
		return err
	}
	defer release()
	l.Doing("the container is being started again")
	if err := c.start(l.name); err != nil {
		return err
	}
	return c.hostPaths.CheckMounted(l.record.Spec.Volumes, mounts)
}

// stopAgain ends what a restart that has failed has started. What it leaves, the next restart or
// the removal finds.
func (c *Containers) stopAgain(ctx context.Context, record lifecycle.Record) {
	err := c.options.Engine.Stop(ctx, containerName(record.Box), cmp.Or(record.StopTime, stopGrace))
	if err = errors.Join(err, c.removeNetwork(ctx, record)); err != nil && ctx.Err() == nil {
		c.options.Logger.Warn().Err(err).Str("sandbox_id", record.Sandbox.ID).Msg("cannot stop what a failed restart has started; retried at the next one")
	}
}
