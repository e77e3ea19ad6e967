// Package volumes has the volumes of an Engine, and the directories that it copies from images for
// containers to mount.
package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/trash"
)

// unfinishedPrefix begins the name of a volume or directory that is being made. No name begins like
// this.
const unfinishedPrefix = "."

// volume is what the disk has of a volume, or of a directory that an image was copied to.
type volume struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Of a directory: what it was copied from.
	ImageID string `json:"imageId,omitempty"`
	Path    string `json:"path,omitempty"`
}

const (
	volumeFile    = "volume.json"
	directoryFile = "folder.json"
)

// Store has the volumes, and the directories that were copied from images. It is safe for
// concurrent use.
type Store struct {
	layout     layout.Layout
	trash      *trash.Trash
	containers *containers.Registry // whose mounts nothing is removed from
	images     *images.Store
	log        zerolog.Logger
	// directoryLock and volumeLock hold one token while a directory is made and while a volume is
	// filled: both are rare.
	directoryLock, volumeLock chan struct{}
}

// New returns the Store of an Engine's directory.
func New(l layout.Layout, t *trash.Trash, c *containers.Registry, i *images.Store, log zerolog.Logger) *Store {
	return &Store{
		layout: l, trash: t, containers: c, images: i, log: log, directoryLock: make(chan struct{}, 1), volumeLock: make(chan struct{}, 1),
	}
}

// Make makes a volume that is missing, and returns the labels of the one that is there then.
func (s *Store) Make(name string, labels map[string]string) (map[string]string, error) {
	if has, err := s.Labels(name); !errors.Is(err, engine.ErrNotFound) {
		return has, err
	}
	next, err := s.unfinished(s.layout.Volumes(), volumeFile, volume{Labels: labels})
	if err != nil {
		return nil, err
	}
	switch err := s.finish(next, filepath.Join(s.layout.Volumes(), name)); {
	case errors.Is(err, os.ErrExist): // another call was faster
		return s.Labels(name)
	case err != nil:
		return nil, err
	}
	return maps.Clone(labels), nil
}

// Labels returns the labels of a volume. The error wraps [engine.ErrNotFound] when there is none.
func (s *Store) Labels(name string) (map[string]string, error) {
	if err := layout.CheckName("volume", name); err != nil {
		return nil, err
	}
	found, err := readVolume(filepath.Join(s.layout.Volumes(), name, volumeFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, engine.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return found.Labels, nil
}

// Sweep throws away what an earlier service was making.
func (s *Store) Sweep() error {
	return errors.Join(s.trash.Sweep(s.layout.Volumes(), unfinishedPrefix), s.trash.Sweep(s.layout.Directories(), unfinishedPrefix))
}

func readVolume(path string) (volume, error) {
	var found volume
	content, err := os.ReadFile(path)
	if err != nil {
		return found, err
	}
	return found, json.Unmarshal(content, &found)
}

// unfinished makes a volume under a name that is no volume's, with an empty directory for its data.
func (s *Store) unfinished(parent, file string, about volume) (string, error) {
	content, err := json.Marshal(about)
	if err != nil {
		return "", err
	}
	next := filepath.Join(parent, unfinishedPrefix+layout.NewID())
	if err := os.Mkdir(next, layout.DirectoryMode); err != nil {
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
		return "", errors.Join(err, s.trash.Throw(next))
	}
	return next, nil
}

// finish gives what was made its name, durably. The error is [os.ErrExist] when the name is taken;
// then what was made is thrown away.
func (s *Store) finish(next, name string) error {
	err := syncDirectory(next)
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return errors.Join(err, s.trash.Throw(next))
	}
	return syncDirectory(filepath.Dir(name))
}

func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Sync(), file.Close())
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// Fill gives an empty volume what the image has where the container mounts it, with the owner and
// mode of the directory, as Docker does. The data is copied beside the volume and then put in its
// place, so a volume is never half full. A volume of another container stays as it is.
func (s *Store) Fill(ctx context.Context, id string, layers []string, m engine.Mount) error {
	select {
	case s.volumeLock <- struct{}{}:
		defer func() { <-s.volumeLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if empty, err := isEmpty(s.layout.VolumeData(m.Volume)); err != nil || !empty {
		return err
	}
	if has, err := bundle.HasDirectory(layers, m.Target); err != nil || !has {
		return err
	}
	from, err := openInLayers(layers, m.Target)
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	defer func() { _ = unix.Close(from) }()
	next, err := s.unfinished(s.layout.Volumes(), volumeFile, volume{})
	if err != nil {
		return err
	}
	data := filepath.Join(next, "data")
	err = copyTree(ctx, from, data, true)
	if err == nil {
		err = syncFileSystem(data)
	}
	if err == nil {
		err = s.exchangeData(id, m.Volume, data)
	}
	return errors.Join(err, s.trash.Throw(next))
}

// exchangeData makes the directory the data of the volume, and the other way round, unless another
// container may have that.
func (s *Store) exchangeData(id, name, data string) error {
	return s.containers.UnlessMounted(id, func(m engine.Mount) bool { return m.Volume == name }, func() error {
		now := s.layout.VolumeData(name)
		if err := unix.Renameat2(unix.AT_FDCWD, data, unix.AT_FDCWD, now, unix.RENAME_EXCHANGE); err != nil {
			return &os.LinkError{Op: "exchange", Old: data, New: now, Err: err}
		}
		return nil
	})
}

// isEmpty reports whether there is nothing in a directory.
func isEmpty(path string) (bool, error) {
	directory, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = directory.Close() }()
	_, err = directory.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

func syncFileSystem(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = directory.Close() }()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(directory.Fd())))
}
