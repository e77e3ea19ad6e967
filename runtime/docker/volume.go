package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"sandbox.internal/runtime/engine"
)

const (
	// fillerLabel marks the containers that fill and check a volume; its value is the volume's
	// name. They are never started and live for a moment; only a crash leaves one behind.
	fillerLabel = "sandbox.internal/filler"
	// volumeInside is where a checking container mounts the volume, besides the image's own files.
	volumeInside = "/.sandbox-volume"
	// volumeRetry is how long to wait for another service that is filling the same volume.
	volumeRetry = 100 * time.Millisecond
	// maxFills ends the attempts with an engine that never copies all of it. More than one is
	// needed when two servers fill the same volume at the same moment.
	maxFills = 3
)

var (
	errVolumeInUse = errors.New("volume is in use")
	errNoVolume    = errors.New("no such volume")
)

// filledVolume is what a volume was proven to hold, and the volume's creation time as the engine
// shows it: a volume that was removed and made again, or written to at its top, is checked again.
type filledVolume struct {
	createdAt, imageID, path string
}

// EnsureDirectory implements [engine.Engine].
//
// Docker copies an image's files into an empty volume when it creates a container that mounts the
// volume over them, so the files get there without running anything. A volume counts as filled when
// every file in it equals the image's; one that a crash left half full, or that holds something
// else, is removed and filled again. The labels must belong to this caller alone: containers with
// them that an earlier run left behind are removed.
func (e *Engine) EnsureDirectory(ctx context.Context, name, imageID, path string,
	labels map[string]string) error {
	if filled, err := e.isKnownFilled(ctx, name, imageID, path); filled || err != nil {
		return err
	}
	select {
	case e.volumeTurn <- struct{}{}:
		defer func() { <-e.volumeTurn }()
	case <-ctx.Done():
		return fmt.Errorf("fill volume %s: %w", name, ctx.Err())
	}
	if filled, err := e.isKnownFilled(ctx, name, imageID, path); filled || err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	if err := e.fillUntilEqual(limited, name, imageID, path, labels); err != nil {
		return fmt.Errorf("fill volume %s: %w", name, err)
	}
	return nil
}

// MakeVolume implements [engine.Engine].
func (e *Engine) MakeVolume(ctx context.Context, name string,
	labels map[string]string) (map[string]string, error) {
	has, err := e.VolumeLabels(ctx, name)
	if !errors.Is(err, engine.ErrNotFound) {
		return has, err
	}
	// The engine answers with the volume that there is when another call was faster.
	var made volume.Volume
	err = e.call(ctx, "create volume "+name, forVolume, func(ctx context.Context) (err error) {
		made, err = e.api.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: labels})
		return err
	})
	return made.Labels, err
}

// VolumeLabels implements [engine.Engine].
func (e *Engine) VolumeLabels(ctx context.Context, name string) (map[string]string, error) {
	found, err := e.inspectVolume(ctx, name)
	if errors.Is(err, errNoVolume) {
		return nil, fmt.Errorf("%w: volume %s", engine.ErrNotFound, name)
	}
	return found.Labels, err
}

// isKnownFilled is the quick way of every call but the first: one request.
func (e *Engine) isKnownFilled(ctx context.Context, name, imageID, path string) (bool, error) {
	found, err := e.inspectVolume(ctx, name)
	if errors.Is(err, errNoVolume) {
		return false, nil
	}
	e.filledMu.Lock()
	defer e.filledMu.Unlock()
	return err == nil && e.filled[name] == filledVolume{found.CreatedAt, imageID, path}, err
}

func (e *Engine) fillUntilEqual(ctx context.Context, name, imageID, path string,
	labels map[string]string) error {
	if err := e.removeFillers(ctx, name, labels); err != nil {
		return err
	}
	for fills := 0; ; {
		found, err := e.inspectVolume(ctx, name)
		if errors.Is(err, errNoVolume) {
			if fills++; fills > maxFills {
				return fmt.Errorf("%w: the engine does not copy what the image has at %s",
					engine.ErrInvalid, path)
			}
			found, err = e.fill(ctx, name, imageID, path, labels)
		}
		if err != nil {
			return err
		}
		equal, err := e.holds(ctx, name, imageID, path, labels)
		if err != nil {
			return err
		}
		if equal {
			e.filledMu.Lock()
			e.filled[name] = filledVolume{found.CreatedAt, imageID, path}
			e.filledMu.Unlock()
			return nil
		}
		e.log.Warn().Str("volume",
			name).Msg("the volume does not hold what its image holds: it is filled again")
		err = e.removeVolume(ctx, name)
		if !errors.Is(err, errVolumeInUse) {
			if err != nil {
				return err
			}
			continue
		}
		select {
		case <-time.After(volumeRetry):
		case <-ctx.Done():
			return fmt.Errorf("%w: it holds something else than the image has at %s, and is in use",
				engine.ErrInvalid, path)
		}
	}
}

// fill makes the volume and has the engine copy the image's files into it.
func (e *Engine) fill(ctx context.Context, name, imageID, path string,
	labels map[string]string) (volume.Volume, error) {
	err := e.call(ctx, "create volume", forVolume, func(ctx context.Context) error {
		_, err := e.api.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: labels})
		return err
	})
	if err != nil {
		return volume.Volume{}, err
	}
	err = e.withFiller(ctx, name, imageID, labels,
		mount.Mount{Type: mount.TypeVolume, Source: name, Target: path},
		func(string) error { return nil })
	if err != nil {
		return volume.Volume{}, err
	}
	return e.inspectVolume(ctx, name)
}

// holds compares what the volume holds with what the image holds at path. The engine shows both of
// a container that never ran.
func (e *Engine) holds(ctx context.Context, name, imageID, path string,
	labels map[string]string) (equal bool, err error) {
	look := mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: volumeInside, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}
	err = e.withFiller(ctx, name, imageID, labels, look, func(id string) error {
		want, err := e.digests(ctx, id, path)
		if err != nil {
			return err
		}
		got, err := e.digests(ctx, id, volumeInside)
		equal = maps.Equal(want, got)
		return err
	})
	return equal, err
}

// withFiller creates a container of the image with the mount, and removes it after use.
func (e *Engine) withFiller(ctx context.Context, name, imageID string, labels map[string]string,
	m mount.Mount, use func(id string) error) error {
	marked := maps.Clone(labels)
	if marked == nil {
		marked = map[string]string{}
	}
	marked[fillerLabel] = name
	config := &container.Config{
		Image:  imageID,
		Labels: marked,
		// an image with neither entrypoint nor command is refused otherwise
		Entrypoint: []string{"/never-started"},
	}
	var created container.CreateResponse
	err := e.call(ctx, "create its container", forCreate, func(ctx context.Context) (err error) {
		created, err = e.api.ContainerCreate(ctx, config,
			&container.HostConfig{Mounts: []mount.Mount{m}, NetworkMode: "none"}, nil, nil, "")
		return err
	})
	if err != nil {
		return err
	}
	// The container goes even when the caller has left.
	return errors.Join(use(created.ID), e.Remove(context.WithoutCancel(ctx), created.ID))
}

// removeFillers removes what an earlier run of the same caller left behind.
func (e *Engine) removeFillers(ctx context.Context, name string, labels map[string]string) error {
	filter := labelFilter(labels)
	filter.Add("label", fillerLabel+"="+name)
	var left []container.Summary
	err := e.call(ctx, "list its containers", forEngine, func(ctx context.Context) (err error) {
		left, err = e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: filter})
		return err
	})
	for _, c := range left {
		err = errors.Join(err, e.Remove(ctx, c.ID))
	}
	return err
}

func (e *Engine) inspectVolume(ctx context.Context, name string) (volume.Volume, error) {
	var found volume.Volume
	err := e.call(ctx, "inspect volume "+name,
		meaning{notFound: errNoVolume, invalid: engine.ErrInvalid},
		func(ctx context.Context) (err error) {
			found, err = e.api.VolumeInspect(ctx, name)
			return err
		})
	return found, err
}

func (e *Engine) removeVolume(ctx context.Context, name string) error {
	return e.call(ctx, "remove volume "+name, forVolume, func(ctx context.Context) error {
		return e.api.VolumeRemove(ctx, name, true)
	})
}
