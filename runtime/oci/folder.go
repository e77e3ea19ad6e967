package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/overlay"
)

// EnsureFolder implements [engine.Engine]. The folder is made under another name and then renamed, so it is complete or not there. Those that
// earlier images had at the path are removed then, if no container mounts them.
func (e *Engine) EnsureFolder(ctx context.Context, name, imageID, inside string, labels map[string]string) error {
	op := "make folder " + name
	if e.closing.Err() != nil {
		return closedError(op)
	}
	if err := checkName("folder", name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if !path.IsAbs(inside) {
		return fmt.Errorf("%s: %w: path %q of the image is not absolute", op, engine.ErrInvalid, inside)
	}
	want := volume{Labels: labels, ImageID: imageID, Path: inside}
	if e.hasFolder(name, want) {
		return nil
	}
	select {
	case e.folderTurn <- struct{}{}:
		defer func() { <-e.folderTurn }()
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", op, ctx.Err())
	}
	if e.hasFolder(name, want) {
		return nil
	}
	if err := e.makeFolder(ctx, name, want); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := e.removeEarlier(name, want); err != nil {
		e.log.Warn().Err(err).Msg("folders of earlier images stay; the next new one tries again")
	}
	return nil
}

// removeEarlier throws away the folders that were copied from the same path of other images.
func (e *Engine) removeEarlier(name string, made volume) error {
	entries, err := os.ReadDir(e.layout.folders())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		earlier := entry.Name()
		at := filepath.Join(e.layout.folders(), earlier)
		has, unreadable := readVolume(filepath.Join(at, folderFile))
		if unreadable != nil || earlier == name || has.Path != made.Path || has.ImageID == made.ImageID ||
			e.userOf(func(m engine.Mount) bool { return m.Folder == earlier }) != "" {
			continue
		}
		if err := e.trash.throw(at); err != nil {
			return err
		}
	}
	return nil
}

// hasFolder reports whether the folder is there and was copied from the same place.
func (e *Engine) hasFolder(name string, want volume) bool {
	has, err := readVolume(filepath.Join(e.layout.folders(), name, folderFile))
	return err == nil && has.ImageID == want.ImageID && has.Path == want.Path
}

func (e *Engine) makeFolder(ctx context.Context, name string, want volume) error {
	image, release, err := e.images.Hold(want.ImageID)
	if err != nil {
		return err
	}
	defer release()
	at := filepath.Join(e.layout.folders(), name)
	if _, err := os.Lstat(at); err == nil { // it was copied from somewhere else
		if user := e.userOf(func(m engine.Mount) bool { return m.Folder == name }); user != "" {
			return fmt.Errorf("%w: it holds something else than the image has at %s, and container %s mounts it", engine.ErrInvalid, want.Path, user)
		}
		if err := e.trash.throw(at); err != nil {
			return err
		}
	}
	next, err := e.unfinished(e.layout.folders(), folderFile, want)
	if err != nil {
		return err
	}
	if err := copyFromLayers(ctx, image.Layers, want.Path, filepath.Join(next, "data")); err != nil {
		return errors.Join(err, e.trash.throw(next))
	}
	return e.finish(next, at)
}

// copyFromLayers copies what the layers together show at a path to an empty folder.
func copyFromLayers(ctx context.Context, layers []string, inside, to string) error {
	from, err := openInLayers(layers, inside)
	if err != nil {
		return fmt.Errorf("%w: folder %s of the image: %w", engine.ErrInvalid, inside, err)
	}
	defer func() { _ = unix.Close(from) }()
	if err := copyTree(ctx, from, to, false); err != nil {
		return fmt.Errorf("copy %s of the image: %w", inside, err)
	}
	return nil
}

// openInLayers opens a folder of an image. Symbolic links of the image are followed within the image.
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

// copyTree copies a folder to an empty one. later says that the caller makes it safe on the disk.
func copyTree(ctx context.Context, from int, to string, later bool) error {
	target, err := unix.Open(to, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: to, Err: err}
	}
	defer func() { _ = unix.Close(target) }()
	copier := treeCopier{ctx: ctx, root: target, links: map[inode]string{}, later: later}
	return copier.folder(from, target, "")
}

// openLayers returns a folder that shows the layers as one, as the kernel does for containers.
func openLayers(layers []string) (*os.File, error) {
	switch len(layers) {
	case 0:
		return nil, errors.New("it has no layers")
	case 1: // an overlay to read needs two, and whiteouts in the lowest layer are devices, which are not copied
		return os.OpenFile(layers[0], unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
	return overlay.Overlay{Lower: layers}.Open()
}
