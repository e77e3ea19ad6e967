package volumes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// OpenAgain is Open for a container that is started again. The caller of the engine has checked the
// host path when the container was made: what lies there may have been exchanged since, so no
// symbolic link on the way is followed.
func (s *Store) OpenAgain(m engine.Mount) (*os.File, error) {
	if m.HostPath == "" {
		return s.Open(m)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.HostPath, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err == unix.ELOOP {
		return nil, fmt.Errorf("%w: host path: %s leads through a symbolic link, as it did not when the container was made", engine.ErrInvalid, m.HostPath)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: host path: %w", engine.ErrInvalid, &os.PathError{Op: "open", Path: m.HostPath, Err: err})
	}
	return os.NewFile(uintptr(fd), m.HostPath), nil
}

// Open opens what is to be mounted, as a path only. It never leaves a volume, and follows nothing
// where a container can write.
func (s *Store) Open(m engine.Mount) (*os.File, error) {
	switch {
	case m.HostPath != "":
		file, err := os.OpenFile(m.HostPath, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%w: host path: %w", engine.ErrInvalid, err)
		}
		return file, nil
	case m.Directory != "":
		file, err := os.OpenFile(s.layout.DirectoryData(m.Directory), unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, fmt.Errorf("%w: there is no directory %s", engine.ErrInvalid, m.Directory)
		}
		return file, nil
	}
	volume, err := os.OpenFile(s.layout.VolumeData(m.Volume), unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: volume %s does not exist", engine.ErrInvalid, m.Volume)
	}
	if err != nil || m.SubPath == "" {
		return volume, err
	}
	defer func() { _ = volume.Close() }()
	return openBeneath(volume, m.SubPath, m.Volume)
}

// openBeneath opens a directory of a volume. Symbolic links are followed as long as they stay
// inside.
func openBeneath(volume *os.File, sub, name string) (*os.File, error) {
	fd, err := unix.Openat2(int(volume.Fd()), sub, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case err == unix.EXDEV:
		return nil, fmt.Errorf("%w: sub path %q leaves volume %s", engine.ErrInvalid, sub, name)
	case err == unix.ENOTDIR:
		return nil, fmt.Errorf("%w: sub path %q of volume %s is not a directory", engine.ErrInvalid, sub, name)
	case err == unix.ENOENT:
		return nil, fmt.Errorf("%w: volume %s has no directory %q", engine.ErrInvalid, name, sub)
	case err != nil:
		return nil, fmt.Errorf("%w: sub path %q of volume %s: %w", engine.ErrInvalid, sub, name, err)
	}
	return os.NewFile(uintptr(fd), sub), nil
}
