package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/api/types/volume"

	"sandbox.internal/runtime/engine"
)

// subpathAPI is the first API version that mounts a directory of a volume by itself, safely against
// symbolic links.
const subpathAPI = "1.45"

func (e *Engine) mounts(ctx context.Context, wanted []engine.Mount) ([]mount.Mount, error) {
	mounts := make([]mount.Mount, 0, len(wanted))
	for _, want := range wanted {
		made, err := e.mount(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", want.Target, err)
		}
		mounts = append(mounts, made)
	}
	return mounts, nil
}

func (e *Engine) mount(ctx context.Context, want engine.Mount) (mount.Mount, error) {
	made := mount.Mount{Target: want.Target, ReadOnly: want.ReadOnly}
	switch {
	case want.HostPath != "":
		// Unlike the older "binds", a mount of type bind is refused when the path is missing,
		// instead of making it.
		made.Type, made.Source = mount.TypeBind, want.HostPath
		return made, nil
	case want.Directory != "": // EnsureDirectory keeps it in a volume
		made.Type, made.Source, made.ReadOnly = mount.TypeVolume, want.Directory, true
		return made, nil
	}
	made.Type, made.Source = mount.TypeVolume, want.Volume
	if want.SubPath == "" {
		return made, nil
	}
	source, err := e.inspectVolume(ctx, want.Volume)
	switch {
	case errors.Is(err, errNoVolume):
		return made, fmt.Errorf("%w: sub path %q: volume %s does not exist", engine.ErrInvalid,
			want.SubPath, want.Volume)
	case err != nil:
		return made, err
	// The request above negotiated the version of the API.
	case versions.GreaterThanOrEqualTo(e.api.ClientVersion(), subpathAPI):
		made.VolumeOptions = &mount.VolumeOptions{Subpath: want.SubPath}
		return made, nil
	}
	made.Type = mount.TypeBind
	made.Source, err = directoryOfVolume(source, want.SubPath)
	return made, err
}

// directoryOfVolume finds a directory of a local volume on this machine, for engines that cannot
// mount it themselves.
//
// A symbolic link that leads out of the volume is refused. Between this check and the start of the
// container a process that can write to the volume could still put such a link there; only an
// engine with API 1.45 closes that gap.
func directoryOfVolume(found volume.Volume, sub string) (string, error) {
	if found.Driver != "local" || len(found.Options) > 0 {
		return "",
			fmt.Errorf(
				"%w: a sub path of volume %s needs a Docker Engine with API %s, or a plain local volume",
				engine.ErrInvalid, found.Name, subpathAPI)
	}
	root, err := os.OpenRoot(found.Mountpoint)
	if err != nil {
		return "",
			fmt.Errorf(
				"%w: a sub path of volume %s needs a Docker Engine with API %s, or access to the volume's directory: %w",
				engine.ErrInvalid, found.Name, subpathAPI, err)
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(sub) // follows links inside the volume only
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: sub path of volume %s: %w", engine.ErrInvalid, found.Name, err)
	case !info.IsDir():
		return "", fmt.Errorf("%w: sub path %q of volume %s is not a directory", engine.ErrInvalid,
			sub, found.Name)
	}
	return filepath.Join(found.Mountpoint, sub), nil
}
