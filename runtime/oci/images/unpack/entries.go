package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// directory makes a directory, or gives the one that is there the entry's attributes.
func (l *layer) directory(name string, header *tar.Header) error {
	parentName, base := split(name)
	fd := -1
	if base == "" {
		own, err := unix.FcntlInt(uintptr(l.root), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fd = own
	} else {
		parent, err := l.enter(parentName)
		if err != nil {
			return err
		}
		err = l.replace(parent, base, func() (err error) {
			fd, err = l.makeDirectory(parent, base)
			return err
		})
		if err != nil {
			return err
		}
	}
	defer func() { _ = unix.Close(fd) }()
	if err := l.setAttributes(fd, header); err != nil {
		return err
	}
	if err := l.dropImplied(fd); err != nil {
		return err
	}
	return l.addTimes(name, timesOf(header.ModTime))
}

func (l *layer) file(directory, base string, header *tar.Header, content io.Reader) error {
	if err := l.add(header.Size); err != nil {
		return err
	}
	if err := l.take(inodeBytes); err != nil {
		return err
	}
	parent, err := l.enter(directory)
	if err != nil {
		return err
	}
	fd := -1
	err = l.replace(parent, base, func() (err error) {
		fd, err = unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := l.copy(fd, content, header.Size); err != nil {
		return err
	}
	if err := l.setAttributes(fd, header); err != nil {
		return err
	}
	return setTimes(parent, base, header)
}

func (l *layer) symlink(directory, base string, header *tar.Header) error {
	if target := header.Linkname; target == "" || len(target) > maxName || strings.ContainsRune(target, 0) {
		return refusedf("the target of a symbolic link has 1 to %d bytes and no zero byte", maxName)
	}
	return l.node(directory, base, header, beside(int64(len(header.Linkname))), func(parent int) error {
		return unix.Symlinkat(header.Linkname, parent, base)
	})
}

func (l *layer) fifo(directory, base string, header *tar.Header) error {
	err := l.node(directory, base, header, 0, func(parent int) error { return unix.Mkfifoat(parent, base, 0o600) })
	if err != nil {
		return err
	}
	parent, err := l.enter(directory)
	if err != nil {
		return err
	}
	return unix.Fchmodat(parent, base, permissions(header), 0) // it was made above and is no symbolic link
}

// node makes something that has no content, but takes size bytes beside its inode, and gives it the
// entry's owner and time.
func (l *layer) node(directory, base string, header *tar.Header, size int64, make func(parent int) error) error {
	if err := l.addWhole(size); err != nil {
		return err
	}
	parent, err := l.enter(directory)
	if err != nil {
		return err
	}
	if err := l.replace(parent, base, func() error { return make(parent) }); err != nil {
		return fmt.Errorf("make entry: %w", err)
	}
	if err := unix.Fchownat(parent, base, header.Uid, header.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("change owner: %w", err)
	}
	return setTimes(parent, base, header)
}

// link makes a hard link. It shares the attributes of its target.
func (l *layer) link(directory, base, targetName string) error {
	name, err := cleanName(targetName)
	if err != nil {
		return fmt.Errorf("target %s of the hard link: %w", quote(targetName), err)
	}
	if name == join(directory, base) {
		return refusedf("a hard link to itself")
	}
	if err := l.addWhole(0); err != nil {
		return err
	}
	if l.leftOut[name] {
		return nil // another name of a device
	}
	missing := refusedf("hard link to %s, which is no file that came before it in this layer", quote(targetName))
	targetDirectory, targetBase := split(name)
	if targetBase == "" || len(targetBase) > maxComponent {
		return missing
	}
	source, err := l.find(targetDirectory)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, errLongPath) {
		return missing
	}
	if err != nil {
		return fmt.Errorf("target %s of the hard link: %w", quote(targetName), err)
	}
	defer func() { _ = unix.Close(source) }()
	kind, err := l.kind(source, targetBase)
	if err != nil {
		return err
	}
	// Neither directories nor whiteouts, which are devices.
	if kind != unix.S_IFREG && kind != unix.S_IFLNK && kind != unix.S_IFIFO {
		return missing
	}
	parent, err := l.enter(directory)
	if err != nil {
		return err
	}
	err = l.replace(parent, base, func() error { return unix.Linkat(source, targetBase, parent, base, 0) })
	if errors.Is(err, unix.ENOENT) {
		return missing // making way for the link removed it
	}
	if err != nil {
		return fmt.Errorf("make hard link: %w", err)
	}
	return nil
}

// whiteout hides what the layers below have under the name. What this layer itself has stays
// visible, whichever comes first.
func (l *layer) whiteout(directory, gone string) error {
	parent, err := l.enter(directory)
	if err != nil {
		return err
	}
	kind, err := l.kind(parent, gone)
	switch {
	case err != nil:
		return err
	case kind == unix.S_IFDIR:
		return l.makeOpaque(join(directory, gone))
	case kind != 0:
		return nil
	}
	if err := l.addWhole(0); err != nil {
		return err
	}
	if err := unix.Mknodat(parent, gone, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make whiteout: %w", err)
	}
	return nil
}

// makeOpaque hides what the layers below have in the directory.
func (l *layer) makeOpaque(name string) error {
	path, err := l.enter(name)
	if err != nil {
		return err
	}
	fd, err := openDirectory(path, ".") // the descriptor of a path has no attributes
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	isRoot, err := sameFile(fd, l.root)
	if err != nil {
		return err
	}
	l.result.Opaque = l.result.Opaque || isRoot
	return setOpaque(fd)
}

// sameFile reports whether two descriptors are of one file.
func sameFile(a, b int) (bool, error) {
	var stats [2]unix.Stat_t
	for i, fd := range []int{a, b} {
		if err := unix.Fstat(fd, &stats[i]); err != nil {
			return false, fmt.Errorf("look at directory: %w", err)
		}
	}
	return stats[0].Dev == stats[1].Dev && stats[0].Ino == stats[1].Ino, nil
}
