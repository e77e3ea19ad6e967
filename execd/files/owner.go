package files

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Owner is the user and the group that what an operation makes belongs to.
type Owner struct{ UID, GID uint32 }

// mkdirAllFor makes the missing directories of a path, the innermost first, for an owner. It goes
// down by descriptors and follows no link to what it has just made, which another process may
// exchange: the owner never gets another file than that.
func mkdirAllFor(missing []string, owner Owner) error {
	if len(missing) == 0 {
		return nil
	}
	top := filepath.Dir(missing[len(missing)-1])
	directory, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: top, Err: err}
	}
	defer func() { _ = unix.Close(directory) }()
	for i := len(missing) - 1; i >= 0; i-- {
		next, err := mkdirFor(directory, filepath.Base(missing[i]), owner)
		if err != nil {
			return &os.PathError{Op: "mkdir", Path: missing[i], Err: err}
		}
		_ = unix.Close(directory)
		directory = next
	}
	return nil
}

// mkdirFor makes a directory in an open one, and opens it. One that another process has made
// meanwhile keeps its owner.
func mkdirFor(directory int, name string, owner Owner) (made int, err error) {
	err = unix.Mkdirat(directory, name, 0o755)
	if errors.Is(err, unix.EEXIST) {
		return unix.Openat(directory, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, err
	}
	made, err = unix.Openat(directory, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchownat(made, "", int(owner.UID), int(owner.GID), unix.AT_EMPTY_PATH); err != nil {
		_ = unix.Close(made)
		return -1, err
	}
	return made, nil
}
