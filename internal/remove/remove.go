// Package remove removes trees that were written by others, such as containers and layers of
// images. Links in them are not followed, and however deep they are, a removal takes a bounded
// number of descriptors, where [os.RemoveAll] takes one for each level.
package remove

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxDepth is how many directories below one another are removed recursively; deeper ones are first
// moved up, into the directory that is removed. What cannot be moved, because it is a mount point
// or inside of one, or a directory of the lower layers of an overlay, takes descriptors in
// addition.
const maxDepth = 64

// All removes a file, or a directory with everything in it. Removing a missing file succeeds. An
// end of ctx, whose error is returned, leaves the rest where it is, perhaps under other names.
func All(ctx context.Context, path string) error {
	directory, name := filepath.Split(filepath.Clean(path))
	parent, err := unix.Open(filepath.Clean(directory), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: directory, Err: err}
	}
	defer func() { _ = unix.Close(parent) }()
	return AllAt(ctx, parent, name)
}

// AllAt is [All] for an entry of the open directory parent.
func AllAt(ctx context.Context, parent int, name string) error {
	r := remover{ctx: ctx, top: -1}
	return r.remove(parent, name, 0)
}

// remover is one removal.
type remover struct {
	ctx context.Context
	top int // descriptor of the directory that is removed
}

// remove removes the entry of a directory, recursively.
func (r *remover) remove(directory int, name string, depth int) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(directory, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM { // POSIX has EPERM for a directory
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	if depth >= maxDepth {
		switch err := unix.Renameat(directory, name, r.top, rand.Text()); err {
		case nil:
			return nil
		case unix.EXDEV, unix.EBUSY:
		default:
			return &os.PathError{Op: "rename", Path: name, Err: err}
		}
	}
	fd, openErr := unix.Openat(directory, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch openErr {
	case nil:
	case unix.ENOENT:
		return nil
	case unix.ENOTDIR, unix.ELOOP: // a file that must not be removed
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	default:
		return &os.PathError{Op: "open", Path: name, Err: openErr}
	}
	file := os.NewFile(uintptr(fd), name)
	defer func() { _ = file.Close() }()
	if depth == 0 {
		r.top = fd
	}
	if err := r.empty(file, fd, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(directory, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

// names are those in an open directory.
type names interface {
	Readdirnames(n int) ([]string, error)
	io.Seeker
}

// empty removes what is in a directory, also what moves up meanwhile. Some file systems skip
// entries when others are removed meanwhile, so it looks again, but only at the end: ext4 reads
// from the begin of a directory through all that was removed.
func (r *remover) empty(file names, fd, depth int) error {
	for removed := true; removed; {
		removed = false
		for {
			found, err := file.Readdirnames(512)
			for _, inner := range found {
				if err := r.remove(fd, inner, depth+1); err != nil {
					return err
				}
				removed = true
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return nil
}
