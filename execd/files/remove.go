package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/remove"
)

// RemoveFiles removes files: also symbolic links (not what they point to), sockets, FIFOs and
// devices. A directory is KindInvalid and a missing path KindNotFound; in both cases nothing is
// removed. A path may be named twice.
func (f *Files) RemoveFiles(paths []string) error {
	abs, err := f.resolveAll(paths)
	if err != nil {
		return err
	}
	for _, path := range abs {
		info, err := os.Lstat(path)
		if err != nil {
			return classify(path, err)
		}
		if info.IsDir() {
			return invalid(path, "is a directory; only files can be removed here")
		}
	}
	for _, path := range abs {
		// One that vanished since the check is where the caller wants it. os.Remove would also take
		// a directory that appeared since.
		if err := unix.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return classify(path, err)
		}
	}
	return nil
}

// RemoveDirectories removes directories with all that is in them. Symbolic links inside are
// removed, not followed. A path that is a file or a symbolic link, and the roots that the system
// stands on (/, /proc, /sys, /dev), are KindInvalid, a missing path is KindNotFound; in these cases
// nothing is removed. An end of ctx leaves the rest.
func (f *Files) RemoveDirectories(ctx context.Context, paths []string) error {
	abs, err := f.resolveAll(paths)
	if err != nil {
		return err
	}
	for _, path := range abs {
		if err := checkRemovable(path); err != nil {
			return err
		}
	}
	for _, path := range abs {
		err := remove.All(ctx, path)
		if stopped := ctx.Err(); err != nil && stopped != nil {
			return fmt.Errorf("stopped: %w", stopped)
		}
		if err != nil {
			return classify(path, err)
		}
	}
	return nil
}

// Remove removes whatever is at a path: a directory with all that is in it, or anything else.
// Removing a missing path succeeds. Links are not followed; the roots that RemoveDirectories refuses
// are KindInvalid here too. An end of ctx leaves the rest.
func (f *Files) Remove(ctx context.Context, path string) error {
	abs, err := f.resolve(path)
	if err != nil {
		return err
	}
	info, err := os.Lstat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return classify(abs, err)
	case info.IsDir():
		if err := checkRoot(abs); err != nil {
			return err
		}
	}
	err = remove.All(ctx, abs)
	if stopped := ctx.Err(); err != nil && stopped != nil {
		return fmt.Errorf("stopped: %w", stopped)
	}
	return classify(abs, err)
}

func checkRemovable(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return classify(path, err)
	}
	if !info.IsDir() {
		return invalid(path, "is not a directory; only directories can be removed here")
	}
	return checkRoot(path)
}

// checkRoot refuses the roots that the system stands on.
func checkRoot(path string) error {
	target, err := followAll(path)
	if err != nil {
		return classify(path, err)
	}
	switch target {
	case "/", "/proc", "/sys", "/dev":
		return invalid(path, "must not be removed: the sandbox needs %s", target)
	}
	return nil
}
