package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box/internal/daemon"
	"sandbox.internal/server/box/internal/images"
	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// Launch makes the box of a record, unless an earlier launch has, and returns once the sandbox is
// usable: its execd has proved at the returned place that it holds the record's token, and with a
// sidecar the firewall is installed. Parts that an unfinished earlier launch left are removed.
//
// It returns [lifecycle.ErrBoxUnavailable] while the engine does not answer, a
// *[lifecycle.BoxFailure] for what is final, and ctx's error.
func (c *Containers) Launch(ctx context.Context, record lifecycle.Record, launch lifecycle.Launch) (lifecycle.Place, error) {
	l := &launching{Launch: launch, containers: c, record: record, name: containerName(record.Box)}
	place, err := l.run(ctx)
	switch {
	case err == nil || ctx.Err() != nil:
		return place, err
	case errors.Is(err, engine.ErrUnavailable):
		return place, translated(err)
	}
	return place, failure(wrongTarget(record.Spec.Volumes, err))
}

// launching is one launch.
type launching struct {
	lifecycle.Launch
	containers *Containers
	record     lifecycle.Record
	name       string   // of the sandbox's container
	entrypoint []string // of the image, of a sandbox that runs it; nil until it is known
}

func (l *launching) run(ctx context.Context) (lifecycle.Place, error) {
	there, err := l.takeUp(ctx)
	if err == nil && !there {
		err = l.make(ctx)
	}
	if err != nil {
		return lifecycle.Place{}, err
	}
	place, err := l.awaitDaemon(ctx)
	if err == nil && there && l.record.Spec.ImageEntrypoint {
		err = l.findEntrypoint(ctx, cmp.Or(l.record.EngineImage, l.record.Sandbox.Image))
		if errors.Is(err, engine.ErrImage) {
			err = nil // the image was removed meanwhile, and the sandbox runs
		}
	}
	place.Entrypoint = l.entrypoint
	return place, err
}

// takeUp reports whether an earlier launch left a container that can be used. One that was never
// started is removed.
func (l *launching) takeUp(ctx context.Context) (bool, error) {
	if l.Fresh {
		return false, nil
	}
	e := l.containers.options.Engine
	container, err := e.Inspect(ctx, l.name)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case container.Status == engine.StatusCreated, container.Status == engine.StatusRemoving,
		container.Status == engine.StatusStopped: // the host was rebooted before the sandbox was proven usable
		return false, e.Remove(ctx, l.name)
	case container.Status == engine.StatusFrozen:
		return true, e.Thaw(ctx, l.name)
	}
	return true, nil
}

// make creates and starts the container, after the one that owns its network.
func (l *launching) make(ctx context.Context) error {
	c := l.containers
	if err := c.fitsHost(l.record.Spec); err != nil {
		return err
	}
	imageID, err := l.image(ctx)
	if err != nil {
		return err
	}
	l.Reached(lifecycle.StagePulled)
	if l.record.Spec.ImageEntrypoint {
		if err := l.findEntrypoint(ctx, imageID); err != nil {
			return err
		}
		l.record.Sandbox.Entrypoint = l.entrypoint
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
	volume, err := c.daemonVolume(ctx)
	if err != nil {
		return fmt.Errorf("make execd available: %w", err)
	}
	spec, err := c.containerSpec(l.record, imageID, volume)
	if err != nil {
		return err
	}
	if err := c.ownVolumes(ctx, l.record); err != nil {
		return err
	}
	release, err := c.hostPaths.PinAll(l.record, spec.Mounts)
	if err != nil {
		return err
	}
	defer release()
	l.Doing("the container is being started")
	if err = c.create(spec); err == nil {
		l.Reached(lifecycle.StageCreated)
		err = c.start(spec.Name)
	}
	if err != nil {
		c.checkVolumeAgain()
		if errors.Is(err, engine.ErrInvalid) && spec.Resources.GPUs != 0 {
			return lifecycle.BoxFailuref(lifecycle.ReasonResourceLimit, "resourceLimits.gpu: %s: %v", l.record.Spec.Resources["gpu"], err)
		}
		return err
	}
	l.Reached(lifecycle.StageStarted)
	return c.hostPaths.CheckMounted(l.record.Spec.Volumes, spec.Mounts)
}

// create creates a container unless it exists. This and start are seen through even when the
// sandbox is deleted meanwhile: only then is it known what there is to remove. When the service
// stops they are broken off, and the next launch finds what they have done.
func (c *Containers) create(spec engine.ContainerSpec) error {
	if _, err := c.options.Engine.Create(c.ctx, spec); err != nil && !errors.Is(err, engine.ErrExists) {
		return err
	}
	return nil
}

// start is described at create.
func (c *Containers) start(name string) error { return c.options.Engine.Start(c.ctx, name) }

func (c *Containers) createAndStart(spec engine.ContainerSpec) error {
	if err := c.create(spec); err != nil {
		return err
	}
	return c.start(spec.Name)
}

func (l *launching) image(ctx context.Context) (string, error) {
	if l.record.Spec.SnapshotID != "" {
		return l.record.EngineImage, nil // whoever may have the snapshot may have its image
	}
	auth := images.RegistryAuth(l.Auth)
	request := images.Request{Ref: l.record.Sandbox.Image, Auth: auth, Key: l.record.Sandbox.Owner, Admin: l.record.ByAdmin}
	imageID, err := l.containers.images.Ensure(ctx, request, func(progress string) {
		l.Waiting(lifecycle.ReasonImagePulling, progress)
	})
	if errors.Is(err, engine.ErrImage) && l.record.NeedsAuth && auth == nil {
		return "", fmt.Errorf("%w (the service restarted during the pull, and credentials are not stored: create the sandbox again)", err)
	}
	return imageID, err
}

// maxImageEntrypoint is how many bytes the entrypoint and the command of an image may have, which
// are written with each change of the record.
const maxImageEntrypoint = 64 << 10

// findEntrypoint looks up what the image with the name or id runs.
func (l *launching) findEntrypoint(ctx context.Context, image string) error {
	found, err := l.containers.options.Engine.FindImage(ctx, image)
	if err != nil {
		return err
	}
	entrypoint, size := slices.Concat(found.Entrypoint, found.Cmd), 0
	for _, word := range entrypoint {
		size += len(word) + 1
	}
	switch {
	case len(entrypoint) == 0 || entrypoint[0] == "":
		return lifecycle.BoxFailuref(lifecycle.ReasonImagePullError,
			"imageEntrypoint: the image has neither an entrypoint nor a command: give the entrypoint")
	case size > maxImageEntrypoint:
		return lifecycle.BoxFailuref(lifecycle.ReasonImagePullError,
			"imageEntrypoint: the entrypoint and the command of the image must have at most %d bytes, have %d", maxImageEntrypoint, size)
	}
	l.entrypoint = entrypoint
	return nil
}

// awaitDaemon returns where the sandbox is reached, once execd has answered there.
func (l *launching) awaitDaemon(ctx context.Context) (lifecycle.Place, error) {
	c := l.containers
	l.Doing("waiting for execd to answer")
	began := time.Now()
	var lastErr error
	var foreign time.Time // since when something else answers; zero when nothing does
	for range c.attempts(ctx) {
		box, err := c.inspect(ctx, &l.record)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			return lifecycle.Place{}, lifecycle.BoxFailuref(lifecycle.ReasonRemovedExternally, lifecycle.RemovedExternally)
		case err != nil:
			return lifecycle.Place{}, err
		case box.Status == lifecycle.BoxEnded && !box.Exit.NeverStarted:
			return lifecycle.Place{}, &lifecycle.BoxFailure{Message: "the entrypoint ended", Exit: box.Exit}
		case box.Status == lifecycle.BoxFrozen: // by another process: nothing answers in there
			if err := c.options.Engine.Thaw(ctx, l.name); err != nil &&
				!errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrNotRunning) {
				return lifecycle.Place{}, err
			}
		}
		if lastErr = l.answers(ctx, box.Place, began); lastErr == nil {
			return box.Place, nil
		}
		switch now := c.options.Clock(); {
		case !errors.Is(lastErr, daemon.ErrNotDaemon):
			foreign = time.Time{}
		case foreign.IsZero():
			foreign = now
		case now.Sub(foreign) >= daemon.ForeignPatience:
			return lifecycle.Place{}, replaced(lastErr)
		}
	}
	if err := ctx.Err(); err != nil {
		return lifecycle.Place{}, err
	}
	if errors.Is(lastErr, daemon.ErrNotDaemon) {
		return lifecycle.Place{}, replaced(lastErr)
	}
	return lifecycle.Place{}, lifecycle.BoxFailuref(lifecycle.ReasonProvisionTimeout,
		"execd did not answer within %v: %v%s", readyTimeout, lastErr, lifecycle.LogAfterMessage(c.lastLines(ctx, l.name)))
}

// attempts yields at once, and then again and again, at first every millisecond and later every 100
// ms, until readyTimeout is over or ctx ends.
func (c *Containers) attempts(ctx context.Context) func(yield func() bool) {
	return func(yield func() bool) {
		deadline := c.options.Clock().Add(readyTimeout)
		for pause := time.Millisecond; c.options.Clock().Before(deadline); pause = min(pause*5/4, 100*time.Millisecond) {
			if !yield() || !clock.Sleep(ctx, pause) {
				return
			}
		}
	}
}

// answers asks execd at the place until it answers, for a short while. began is when it was asked
// first.
func (l *launching) answers(ctx context.Context, place lifecycle.Place, began time.Time) error {
	if place.Port == 0 {
		return errors.New("the engine has not published its port")
	}
	c := l.containers
	asked := c.addressOf(&l.record, place.Port)
	if err := c.daemons.AwaitAnswer(ctx, asked, began, 200*time.Millisecond); err != nil {
		return err
	}
	return l.Ready(place)
}

func replaced(err error) error {
	return lifecycle.BoxFailuref(lifecycle.ReasonDaemonReplaced,
		"%v: another program has taken the port, or runtime.execd_image is older than the service", err)
}
