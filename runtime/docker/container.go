package docker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"sandbox.internal/runtime/engine"
)

// Create implements [engine.Engine]. It returns [engine.ErrImage] when the image is gone.
func (e *Engine) Create(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	op := "create container " + spec.Name
	if err := spec.Check(); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	imageID, err := e.imageOf(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	seccomp, err := e.defaultSeccomp(ctx) // which asks the engine about its machine
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	config, host := containerConfig(spec), *hostConfig(spec, seccomp)
	config.Image = imageID
	if config.Labels, err = ownLabels(spec); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	if host.Mounts, err = e.mounts(ctx, spec.Mounts); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	if config.Env, err = e.withStopSignal(ctx, spec, imageID, config.Env); err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	id, err := e.processors.confine(spec, func(list string) (id string, err error) {
		host := host // the attempts differ
		host.CpusetCpus = list
		err = e.createShown(ctx, spec, func(shown []mount.Mount) (err error) {
			host := host
			host.Mounts = slices.Concat(host.Mounts, shown)
			id, err = e.create(ctx, spec.Name, config, &host)
			return err
		})
		return id, err
	})
	if errors.Is(err, engine.ErrImage) && spec.Snapshot != "" {
		return id, fmt.Errorf("%s: %w: %s: it was removed meanwhile", op, engine.ErrNoSnapshot, spec.Snapshot)
	}
	if err != nil {
		return id, err
	}
	if err := e.checkTargets(ctx, id, imageID, spec.Mounts); err != nil {
		err = fmt.Errorf("%s: %w", op, err)
		return "", errors.Join(err, e.Remove(context.WithoutCancel(ctx), id))
	}
	e.made.add(id, spec.Name)
	return id, nil
}

// imageOf returns the id of the image that a container of the spec is made of.
func (e *Engine) imageOf(ctx context.Context, spec engine.ContainerSpec) (string, error) {
	if spec.Snapshot == "" {
		return spec.ImageID, nil
	}
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		return "", fmt.Errorf("%w: snapshot: %w", engine.ErrInvalid, err)
	}
	k, found, err := e.findSnapshot(ctx, spec.Snapshot)
	if err == nil && k.Base != spec.ImageID {
		err = fmt.Errorf("%w: snapshot: %s is of the image %s", engine.ErrInvalid, spec.Snapshot, k.Base)
	}
	return found.ID, err
}

// create has the engine create a container.
func (e *Engine) create(ctx context.Context, name string, config *container.Config, host *container.HostConfig) (string, error) {
	var created container.CreateResponse
	err := e.call(ctx, "create container "+name, forCreate, func(ctx context.Context) (err error) {
		created, err = e.api.ContainerCreate(ctx, config, host, nil, nil, name)
		return err
	})
	for _, warning := range created.Warnings {
		e.log.Warn().Str("container", name).Msg(warning)
	}
	return created.ID, err
}

// withStopSignal adds the image's STOPSIGNAL to the environment, where the spec asks for it.
func (e *Engine) withStopSignal(ctx context.Context, spec engine.ContainerSpec, imageID string, env []string) ([]string, error) {
	if spec.StopSignalVariable == "" {
		return env, nil
	}
	var found image.InspectResponse
	err := e.call(ctx, "inspect image "+imageID, forCreate, func(ctx context.Context) (err error) {
		found, err = e.api.ImageInspect(ctx, imageID)
		return err
	})
	if err != nil || found.Config == nil || found.Config.StopSignal == "" {
		return env, err
	}
	return append(env, spec.StopSignalVariable+"="+found.Config.StopSignal), nil
}

// Start implements [engine.Engine]. Starting a running container succeeds.
func (e *Engine) Start(ctx context.Context, id string) error {
	made := e.made.take(id)
	lock := e.locks.lockShared
	if !made { // another container may have to take its place
		lock = func(ctx context.Context, id string) (func(), error) { return e.locks.lock(ctx, id) }
	}
	unlock, err := lock(ctx, id)
	if err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	defer unlock()
	if !made {
		if err := e.prepareAgain(ctx, id); err != nil {
			return err
		}
	}
	return e.call(ctx, "start container "+id, forContainer, func(ctx context.Context) error {
		return e.api.ContainerStart(ctx, id, container.StartOptions{})
	})
}

// Freeze implements [engine.Engine].
func (e *Engine) Freeze(ctx context.Context, id string) error {
	op := "freeze container " + id
	unlock, err := e.locks.lockShared(ctx, id)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer unlock()
	for attempt := 1; ; attempt++ {
		err := e.call(ctx, op, forContainer,
			func(ctx context.Context) error { return e.api.ContainerPause(ctx, id) })
		err = e.unlessAlready(ctx, op, id, engine.StatusFrozen, err)
		if err == nil || attempt == freezeAttempts || !strings.Contains(err.Error(), unableToFreeze) {
			return err
		}
	}
}

// With cgroup v1, runc gives up after some seconds where processes that are being made keep the
// cgroup from freezing, and thaws it. That passes: the next attempt usually succeeds.
const (
	unableToFreeze = "unable to freeze" // as runc says it, through the engine
	freezeAttempts = 3
)

// Thaw implements [engine.Engine].
func (e *Engine) Thaw(ctx context.Context, id string) error {
	op := "thaw container " + id
	unlock, err := e.locks.lockShared(ctx, id)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer unlock()
	err = e.call(ctx, op, forContainer,
		func(ctx context.Context) error { return e.api.ContainerUnpause(ctx, id) })
	return e.unlessAlready(ctx, op, id, engine.StatusRunning, err)
}

// unlessAlready judges a refused freeze or thaw by the container's status, because the engine's
// status codes and texts for "already paused", "not paused" and "not running" differ from version
// to version.
func (e *Engine) unlessAlready(ctx context.Context, op, id string, want engine.Status,
	refused error) error {
	if refused == nil || errors.Is(refused, engine.ErrNotFound) ||
		errors.Is(refused, engine.ErrUnavailable) {
		return refused
	}
	found, err := e.Inspect(ctx, id)
	if err != nil {
		return refused
	}
	switch found.Status {
	case want:
		return nil
	case engine.StatusCreated, engine.StatusExited, engine.StatusStopped:
		return fmt.Errorf("%s: %w: it is %s", op, engine.ErrNotRunning, found.Status)
	default:
		return refused
	}
}

// Stop implements [engine.Engine]. The engine counts in whole seconds: grace is rounded up.
// It thaws a frozen container so that the signals arrive.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	op := "stop container " + id
	unlock, err := e.locks.lockShared(ctx, id)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer unlock()
	seconds := max(0, int(math.Ceil(grace.Seconds())))
	err = e.callWithin(ctx, e.timeout+grace, op, forContainer,
		func(ctx context.Context) error {
			return e.api.ContainerStop(ctx, id, container.StopOptions{Timeout: &seconds})
		})
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	return err
}

// Remove implements [engine.Engine]. It returns when the container is gone, also when another
// client is removing it.
func (e *Engine) Remove(ctx context.Context, id string) error {
	op := "remove container " + id
	unlock, err := e.locks.lockShared(ctx, id)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer unlock()
	e.made.take(id)
	if !isContainerID(id) { // what was to take its place must not
		if err := e.remove(ctx, id+nextSuffix); err != nil {
			return err
		}
	}
	return e.remove(ctx, id)
}

// remove is Remove for one container, whatever other calls do with it.
func (e *Engine) remove(ctx context.Context, id string) error {
	op := "remove container " + id
	err := e.call(ctx, op, forContainer, func(ctx context.Context) error {
		return e.api.ContainerRemove(ctx, id,
			container.RemoveOptions{Force: true, RemoveVolumes: true})
	})
	if errors.Is(err, engine.ErrNotRunning) { // 409: a removal is in progress
		err = e.call(ctx, op, forContainer,
			func(ctx context.Context) error { return e.waitRemoved(ctx, id) })
	}
	if err == nil || errors.Is(err, engine.ErrNotFound) {
		e.processors.forget(id)
		return nil
	}
	return err
}

func (e *Engine) waitRemoved(ctx context.Context, id string) error {
	removed, failed := e.api.ContainerWait(ctx, id, container.WaitConditionRemoved)
	select {
	case <-removed:
		return nil
	case err := <-failed:
		return err
	}
}
