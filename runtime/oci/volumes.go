package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/images"
)

// unfinishedPrefix begins the name of a volume or folder that is being made. No name begins like this.
const unfinishedPrefix = "."

// volume is what the disk has of a volume, or of a folder that an image was copied to.
type volume struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Of a folder: what it was copied from.
	ImageID string `json:"imageId,omitempty"`
	Path    string `json:"path,omitempty"`
}

func (l layout) volumeData(name string) string { return filepath.Join(l.volumes(), name, "data") }
func (l layout) folderData(name string) string { return filepath.Join(l.folders(), name, "data") }

const (
	volumeFile = "volume.json"
	folderFile = "folder.json"
)

// MakeVolume implements [engine.Engine].
func (e *Engine) MakeVolume(ctx context.Context, name string, labels map[string]string) (map[string]string, error) {
	op := "make volume " + name
	if err := checkName("volume", name); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if has, err := e.VolumeLabels(ctx, name); !errors.Is(err, engine.ErrNotFound) {
		return has, err
	}
	next, err := e.unfinished(e.layout.volumes(), volumeFile, volume{Labels: labels})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	switch err := e.finish(next, filepath.Join(e.layout.volumes(), name)); {
	case errors.Is(err, os.ErrExist): // another call was faster
		return e.VolumeLabels(ctx, name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return maps.Clone(labels), nil
}

// VolumeLabels implements [engine.Engine].
func (e *Engine) VolumeLabels(_ context.Context, name string) (map[string]string, error) {
	op := "look for volume " + name
	if e.closing.Err() != nil {
		return nil, closedError(op)
	}
	if err := checkName("volume", name); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	found, err := readVolume(filepath.Join(e.layout.volumes(), name, volumeFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", op, engine.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return found.Labels, nil
}

// userOf returns the name of a container with such a mount, if there is one.
func (e *Engine) userOf(is func(engine.Mount) bool) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, c := range e.byName {
		for _, m := range c.record.Spec.Mounts {
			if is(m) {
				return name
			}
		}
	}
	return ""
}

func readVolume(path string) (volume, error) {
	var found volume
	content, err := os.ReadFile(path)
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(content, &found)
}

// unfinished makes a volume under a name that is no volume's, with an empty folder for its data.
func (e *Engine) unfinished(parent, file string, about volume) (string, error) {
	content, err := json.Marshal(about)
	if err != nil {
		return "", err
	}
	next := filepath.Join(parent, unfinishedPrefix+newID())
	if err := os.Mkdir(next, folderMode); err != nil {
		return "", err
	}
	data := filepath.Join(next, "data")
	err = os.Mkdir(data, 0o755) //nolint:gosec // containers' users see it, and only through a mount
	if err == nil {
		err = os.Chmod(data, 0o755) //nolint:gosec // whatever the service's umask is
	}
	if err == nil {
		err = writeSynced(filepath.Join(next, file), content)
	}
	if err != nil {
		return "", errors.Join(err, e.trash.throw(next))
	}
	return next, nil
}

// finish gives what was made its name, durably. The error is [os.ErrExist] when the name is taken; then what was made is thrown away.
func (e *Engine) finish(next, name string) error {
	err := syncFolder(next)
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, e.trash.throw(next))
	}
	return syncFolder(filepath.Dir(name))
}

func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// fillVolume gives an empty volume what the image has where the container mounts it, with the owner and mode of the folder, as Docker does. It is
// copied beside the volume and then put in its place, so a volume is never half full. One that another container has is left as it is.
func (e *Engine) fillVolume(ctx context.Context, c *container, image images.Image, m engine.Mount) error {
	select {
	case e.volumeTurn <- struct{}{}:
		defer func() { <-e.volumeTurn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if empty, err := isEmpty(e.layout.volumeData(m.Volume)); err != nil || !empty {
		return err
	}
	if has, err := bundle.HasFolder(image.Layers, m.Target); err != nil || !has {
		return err
	}
	from, err := openInLayers(image.Layers, m.Target)
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	defer func() { _ = unix.Close(from) }()
	next, err := e.unfinished(e.layout.volumes(), volumeFile, volume{})
	if err != nil {
		return err
	}
	data := filepath.Join(next, "data")
	err = copyTree(ctx, from, data, true)
	if err == nil {
		err = syncFileSystem(data)
	}
	if err == nil {
		err = e.exchangeData(c, m.Volume, data)
	}
	return errors.Join(err, e.trash.throw(next))
}

// exchangeData makes the folder the data of the volume, and the other way round, unless another container may have that.
func (e *Engine) exchangeData(c *container, name, data string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.byID {
		if other != c && slices.ContainsFunc(other.record.Spec.Mounts, func(m engine.Mount) bool { return m.Volume == name }) {
			return nil
		}
	}
	now := e.layout.volumeData(name)
	if err := unix.Renameat2(unix.AT_FDCWD, data, unix.AT_FDCWD, now, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: data, New: now, Err: err}
	}
	return nil
}

// isEmpty reports whether there is nothing in a folder.
func isEmpty(path string) (bool, error) {
	folder, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = folder.Close() }()
	_, err = folder.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

func syncFileSystem(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(folder.Fd())))
}
