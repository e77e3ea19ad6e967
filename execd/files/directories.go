package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakeDirectories makes directories, with parents as needed, and gives each named one its
// permission. An existing directory keeps everything but its permission; a file of another type at
// the path or above it is KindConflict. Without a mode a new directory is 0755 less the daemon's
// umask, like every parent.
func (f *Files) MakeDirectories(wanted map[string]Permission) error {
	steps, err := f.permissionSteps(wanted)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if _, err := checkDirectory(step.path); err != nil {
			return err
		}
	}
	for _, step := range steps {
		if _, err := makeDirectory(step.path, nil); err != nil {
			return err
		}
		if err := step.attributes.apply(step.path); err != nil {
			return err
		}
	}
	return nil
}

// checkDirectory checks that path is a directory or could become one: the first thing that exists,
// going up from path, must be a directory. It returns that.
func checkDirectory(path string) (string, error) {
	for {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.IsDir():
			return path, nil
		case err == nil:
			return "", conflict(path, "exists and is not a directory")
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return "", classify(path, err)
		}
		switch _, err := os.Readlink(path); {
		case err == nil:
			return "", conflict(path, "exists and is a symbolic link to nothing")
		case errors.Is(err, unix.EINVAL):
			continue // it has been made since: look again
		}
		path = filepath.Dir(path)
	}
}

// MakeDirectory makes a directory, with parents as needed, all for an owner. It reports whether it
// made one: an existing directory is left as it is. A file of another type at the path is
// KindInvalid, one above it KindConflict.
func (f *Files) MakeDirectory(path string, owner Owner) (made bool, err error) {
	abs, err := f.resolve(path)
	if err != nil {
		return false, err
	}
	if info, err := os.Stat(abs); err == nil && !info.IsDir() {
		return false, invalid(abs, "exists and is not a directory")
	}
	if _, err := checkDirectory(abs); err != nil {
		return false, err
	}
	missing, err := makeDirectory(abs, &owner)
	return len(missing) > 0, err
}

// makeDirectory makes a directory with its parents, or none of them; those of a nil owner are the
// daemon's. It returns those that were missing, the innermost first.
func makeDirectory(path string, owner *Owner) (missing []string, err error) {
	for parent := path; !exists(parent); parent = filepath.Dir(parent) {
		missing = append(missing, parent)
	}
	if owner == nil {
		err = os.MkdirAll(path, 0o755)
	} else {
		err = mkdirAllFor(missing, *owner)
	}
	if err == nil {
		return missing, nil
	}
	removeMade(missing)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return nil, conflict(path, "a parent exists and is not a directory")
	case errors.Is(err, fs.ErrNotExist) && len(missing) > 0 && isDirectory(filepath.Dir(missing[len(missing)-1])):
		// What the kernel says in /proc. It is not a parent that is missing.
		return nil, &Error{Kind: KindPermission, Path: path, Msg: "its directory takes no new files", Err: err}
	}
	return nil, classify(path, err)
}

// removeMade removes directories that makeDirectory has made. It fails where nothing was made, and
// where another process has put something in: both are as they should be.
func removeMade(directories []string) {
	for _, directory := range directories {
		_ = unix.Rmdir(directory)
	}
}

// exists reports whether something is at path, or may be.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
