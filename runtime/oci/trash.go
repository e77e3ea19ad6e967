package oci

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// trash removes folders in the background. What is in them was written by containers: it is never followed, and however deep it is, the
// removal takes a bounded number of descriptors.
type trash struct {
	folder string
	log    zerolog.Logger

	mu      sync.Mutex
	wake    chan struct{} // holds a token while there may be something to remove
	closing chan struct{}
	done    chan struct{}
}

// maxTrashDepth is how many folders below one another are removed recursively; deeper ones are moved up first.
const maxTrashDepth = 64

func newTrash(folder string, log zerolog.Logger) *trash {
	t := &trash{folder: folder, log: log, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{})}
	go t.run()
	nudge(t.wake) // an earlier run may have left something
	return t
}

// throw moves a folder here, under a new name; it is gone from its place when throw returns. One that is not there is no error.
func (t *trash) throw(folder string) error {
	err := os.Rename(folder, filepath.Join(t.folder, newID()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	nudge(t.wake)
	return err
}

// stop ends the removal after the entry that it is at. The rest goes when the folder is used again.
func (t *trash) stop() {
	t.mu.Lock()
	select {
	case <-t.closing:
	default:
		close(t.closing)
	}
	t.mu.Unlock()
	<-t.done
}

func (t *trash) run() {
	defer close(t.done)
	for {
		select {
		case <-t.wake:
			if err := t.empty(); err != nil {
				t.log.Warn().Err(err).Str("folder", t.folder).Msg("what was removed still takes room; the next removal tries again")
			}
		case <-t.closing:
			return
		}
	}
}

var errStopped = errors.New("stopped")

// empty removes everything, also what moves up meanwhile.
func (t *trash) empty() error {
	root, err := unix.Open(t.folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(root) }()
	failed := map[string]error{}
	for {
		entries, err := os.ReadDir(t.folder)
		if err != nil {
			return err
		}
		progress := false
		for _, entry := range entries {
			if failed[entry.Name()] != nil {
				continue
			}
			progress = true
			switch err := t.remove(root, root, entry.Name(), 0); {
			case errors.Is(err, errStopped):
				return nil
			case err != nil:
				failed[entry.Name()] = err
			}
		}
		if !progress {
			for _, err := range failed {
				return err // the first of any says enough
			}
			return nil
		}
	}
}

// remove removes the entry of a folder, recursively.
func (t *trash) remove(root, folder int, name string, depth int) error {
	select {
	case <-t.closing:
		return errStopped
	default:
	}
	err := unix.Unlinkat(folder, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR && err != unix.EPERM { // POSIX has EPERM for a folder
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	if depth == maxTrashDepth {
		return unix.Renameat(folder, name, root, newID())
	}
	fd, err := unix.Openat(folder, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	defer func() { _ = file.Close() }()
	for {
		names, err := file.Readdirnames(512)
		if len(names) == 0 {
			if err != nil && err != io.EOF {
				return err
			}
			break
		}
		for _, inner := range names {
			if err := t.remove(root, fd, inner, depth+1); err != nil {
				return err
			}
		}
		// Some file systems skip entries when others are removed meanwhile.
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(folder, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}
