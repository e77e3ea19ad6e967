package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakeDirectories makes directories, with parents as needed, and gives each named one its permission. One that exists
// already is left as it is, but for the permission; any other thing at the path or above it is KindConflict.
// Without a mode a new directory is 0755 less the daemon's umask, like every parent.
func (f *Files) MakeDirectories(wanted map[string]Permission) error {
	steps, err := f.permissionSteps(wanted)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := checkDirectory(step.path); err != nil {
			return err
		}
	}
	for _, step := range steps {
		if err := makeDirectory(step.path); err != nil {
			return err
		}
		if err := step.attributes.apply(step.path); err != nil {
			return err
		}
	}
	return nil
}

// checkDirectory tells whether path is a directory or could become one: the first thing that exists, going up from
// path, must be a directory.
func checkDirectory(path string) error {
	for {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.IsDir():
			return nil
		case err == nil:
			return conflict(path, "exists and is not a directory")
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return classify(path, err)
		}
		if _, err := os.Lstat(path); err == nil {
			return conflict(path, "exists and is a symbolic link to nothing")
		}
		path = filepath.Dir(path)
	}
}

func makeDirectory(path string) error {
	err := os.MkdirAll(path, 0o755)
	if errors.Is(err, unix.ENOTDIR) {
		return conflict(path, "a parent exists and is not a directory")
	}
	return classify(path, err)
}
