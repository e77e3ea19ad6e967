package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/overlay"
)

// EnsureDirectory makes a directory with what an image has at a path, unless it is there. It is
// made under another name and then renamed, so it is complete or not there. Those that earlier
// images had at the path are removed then, if no container mounts them.
func (s *Store) EnsureDirectory(ctx context.Context, name, imageID, inside string, labels map[string]string) error {
	if err := layout.CheckName("directory", name); err != nil {
		return err
	}
	if !path.IsAbs(inside) {
		return fmt.Errorf("%w: path %q of the image is not absolute", engine.ErrInvalid, inside)
	}
	want := volume{Labels: labels, ImageID: imageID, Path: inside}
	if s.hasDirectory(name, want) {
		return nil
	}
	select {
	case s.directoryLock <- struct{}{}:
		defer func() { <-s.directoryLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.hasDirectory(name, want) {
		return nil
	}
	if err := s.makeDirectory(ctx, name, want); err != nil {
		return err
	}
	if err := s.removeEarlier(name, want); err != nil {
		s.log.Warn().Err(err).Msg("cannot remove directories of earlier images; retried when the next one is made")
	}
	return nil
}

// removeEarlier throws away the directories that were copied from the same path of other images.
func (s *Store) removeEarlier(name string, made volume) error {
	entries, err := os.ReadDir(s.layout.Directories())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		earlier := entry.Name()
		at := filepath.Join(s.layout.Directories(), earlier)
		has, unreadable := readVolume(filepath.Join(at, directoryFile))
		if unreadable != nil || earlier == name || has.Path != made.Path || has.ImageID == made.ImageID ||
			s.containers.MountedBy(func(m engine.Mount) bool { return m.Directory == earlier }) != "" {
			continue
		}
		if err := s.trash.Throw(at); err != nil {
			return err
		}
	}
	return nil
}

// hasDirectory reports whether the directory is there and was copied from the same place.
func (s *Store) hasDirectory(name string, want volume) bool {
	has, err := readVolume(filepath.Join(s.layout.Directories(), name, directoryFile))
	return err == nil && has.ImageID == want.ImageID && has.Path == want.Path
}

func (s *Store) makeDirectory(ctx context.Context, name string, want volume) error {
	image, release, err := s.images.Hold(want.ImageID)
	if err != nil {
		return err
	}
	defer release()
	at := filepath.Join(s.layout.Directories(), name)
	if _, err := os.Lstat(at); err == nil { // it was copied from somewhere else
		if user := s.containers.MountedBy(func(m engine.Mount) bool { return m.Directory == name }); user != "" {
			return fmt.Errorf("%w: it holds something else than the image has at %s, and container %s mounts it", engine.ErrInvalid, want.Path, user)
		}
		if err := s.trash.Throw(at); err != nil {
			return err
		}
	}
	next, err := s.unfinished(s.layout.Directories(), directoryFile, want)
	if err != nil {
		return err
	}
	if err := copyFromLayers(ctx, image.Layers, want.Path, filepath.Join(next, "data")); err != nil {
		return errors.Join(err, s.trash.Throw(next))
	}
	return s.finish(next, at)
}

// copyFromLayers copies what the layers together show at a path to an empty directory.
func copyFromLayers(ctx context.Context, layers []string, inside, to string) error {
	from, err := openInLayers(layers, inside)
	if err != nil {
		return fmt.Errorf("%w: directory %s of the image: %w", engine.ErrInvalid, inside, err)
	}
	defer func() { _ = unix.Close(from) }()
	if err := copyTree(ctx, from, to, false); err != nil {
		return fmt.Errorf("copy %s of the image: %w", inside, err)
	}
	return nil
}

// openInLayers opens a directory of an image. Symbolic links of the image are followed within the
// image.
func openInLayers(layers []string, inside string) (int, error) {
	root, err := openLayers(layers)
	if err != nil {
		return -1, fmt.Errorf("read the image: %w", err)
	}
	defer func() { _ = root.Close() }()
	return unix.Openat2(int(root.Fd()), inside, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// copyTree copies a directory to an empty one. later says that the caller makes it safe on the
// disk.
func copyTree(ctx context.Context, from int, to string, later bool) error {
	target, err := unix.Open(to, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: to, Err: err}
	}
	defer func() { _ = unix.Close(target) }()
	copier := treeCopier{ctx: ctx, root: target, links: map[inode]string{}, later: later}
	return copier.directory(from, target, "")
}

// openLayers returns a directory that shows the layers as one, as the kernel does for containers.
func openLayers(layers []string) (*os.File, error) {
	switch len(layers) {
	case 0:
		return nil, errors.New("image has no layers")
	case 1: // an overlay to read needs two, and whiteouts in the lowest layer are devices, which are not copied
		return os.OpenFile(layers[0], unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
	return overlay.Overlay{Lower: layers}.Open()
}
