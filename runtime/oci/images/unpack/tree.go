package unpack

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/remove"
)

// beneath lets the kernel refuse every name that leads out of the layer's folder, by a symbolic link for instance.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

var errNotFolder = refusedf("the name leads through something that is not a folder of this layer")

// find opens an existing folder. The caller closes the descriptor.
func (l *layer) find(name string) (int, error) {
	fd, err := unix.Openat2(l.root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath})
	switch {
	case errors.Is(err, unix.EXDEV):
		return -1, refusedf("the name leads out of the layer through a symbolic link")
	case errors.Is(err, unix.ELOOP):
		return -1, refusedf("the name leads through too many symbolic links")
	}
	return fd, err
}

// enter opens a folder that entries are made in, and makes it, and those above it, where there are none. The descriptor is valid until the
// next call.
func (l *layer) enter(name string) (int, error) {
	if l.open >= 0 && l.openName == name {
		return l.open, nil
	}
	fd, err := l.descend(name)
	if err != nil {
		return -1, err
	}
	l.forget()
	l.open, l.openName = fd, name
	return fd, nil
}

func (l *layer) forget() {
	if l.open >= 0 {
		_ = unix.Close(l.open)
		l.open = -1
	}
}

func (l *layer) descend(name string) (int, error) {
	fd, err := l.find(name)
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || name == "." {
		return fd, err
	}
	folder, base := split(name)
	parent, err := l.descend(folder)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(parent) }()
	fd, err = l.makeFolder(parent, base)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, errNotFolder
	}
	return fd, err
}

// makeFolder makes a folder, which is opaque when it replaces a whiteout of this layer, and opens it. A folder that is there already is
// opened. It returns EEXIST for anything else that has the name.
func (l *layer) makeFolder(parent int, base string) (int, error) {
	kind, err := l.kind(parent, base)
	if err != nil {
		return -1, err
	}
	switch kind {
	case unix.S_IFDIR:
		return openFolder(parent, base)
	case unix.S_IFCHR, 0:
	default:
		return -1, unix.EEXIST
	}
	if err := l.addWhole(blockBytes); err != nil {
		return -1, err
	}
	if kind == unix.S_IFCHR {
		if err := unix.Unlinkat(parent, base, 0); err != nil {
			return -1, fmt.Errorf("remove whiteout: %w", err)
		}
	}
	if err := unix.Mkdirat(parent, base, 0o755); err != nil {
		return -1, fmt.Errorf("make folder: %w", err)
	}
	fd, err := openFolder(parent, base)
	if err != nil {
		return -1, err
	}
	// A folder with the set-group-id bit passes its group on.
	err = errors.Join(unix.Fchown(fd, 0, 0), unix.Fchmod(fd, 0o755))
	if err == nil && kind == unix.S_IFCHR {
		err = setOpaque(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make folder: %w", err)
	}
	return fd, nil
}

// openFolder opens a folder for its attributes; the last part of its name is not followed.
func openFolder(parent int, base string) (int, error) {
	fd, err := unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open folder: %w", err)
	}
	return fd, nil
}

// kind returns the type bits of what has the name, 0 when nothing has. A character device is a whiteout that was written here: no entry
// makes devices.
func (l *layer) kind(parent int, base string) (uint32, error) {
	var stat unix.Stat_t
	err := unix.Fstatat(parent, base, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at entry: %w", err)
	}
	return stat.Mode & unix.S_IFMT, nil
}

// replace makes something that is no folder, in place of what has its name.
func (l *layer) replace(parent int, base string, make func() error) error {
	err := make()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := remove.AllAt(l.ctx, parent, base); err != nil {
		return fmt.Errorf("replace earlier entry: %w", err)
	}
	return make()
}

func join(folder, base string) string {
	if folder == "." {
		return base
	}
	return folder + "/" + base
}
