package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxCopyDepth bounds how deep a copied tree is: every level takes two descriptors.
	maxCopyDepth = 128
	// maxAttribute bounds one extended attribute; the kernel's limit.
	maxAttribute = 64 << 10
)

// inode identifies a file of the source.
type inode struct {
	device, number uint64
}

// treeCopier copies a tree with owners, modes, times, extended attributes and hard links. It
// follows no symbolic link, and leaves out devices, FIFOs and sockets.
type treeCopier struct {
	ctx   context.Context
	root  int              // the directory that is copied to
	links map[inode]string // files with several names, by the first one that was copied, relative to root
	later bool             // the caller makes what was copied safe on the disk
}

func (t *treeCopier) sync(fd int) error {
	if t.later {
		return nil
	}
	return unix.Fsync(fd)
}

// directory copies what is in a directory, and then the directory's attributes. name is its path
// below the root.
func (t *treeCopier) directory(from, to int, name string) error {
	if strings.Count(name, "/") > maxCopyDepth {
		return fmt.Errorf("%s: more than %d directories deep", name, maxCopyDepth)
	}
	duplicate, err := unix.Openat(from, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	listing := os.NewFile(uintptr(duplicate), name)
	defer func() { _ = listing.Close() }()
	for {
		names, err := listing.Readdirnames(256)
		for _, entry := range names {
			if err := t.entry(from, to, entry, path.Join(name, entry)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(copyAttributes(from, to, name), pathError("fsync", name, t.sync(to)))
}

// pathError is an error about a path, nil when err is.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

// entry copies one entry of a directory.
func (t *treeCopier) entry(from, to int, entry, name string) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	var info unix.Stat_t
	if err := unix.Fstatat(from, entry, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	switch info.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := unix.Mkdirat(to, entry, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: name, Err: err}
		}
		return both(from, to, entry, unix.O_RDONLY|unix.O_DIRECTORY, unix.O_RDONLY|unix.O_DIRECTORY,
			func(from, to int) error { return t.directory(from, to, name) })
	case unix.S_IFLNK:
		return copyLink(from, to, entry, name, info)
	case unix.S_IFREG:
		return t.file(from, to, entry, name, info)
	}
	return nil
}

func (t *treeCopier) file(from, to int, entry, name string, info unix.Stat_t) error {
	if info.Nlink > 1 {
		key := inode{info.Dev, info.Ino}
		if first, ok := t.links[key]; ok {
			return pathError("link", name, unix.Linkat(t.root, first, to, entry, 0))
		}
		t.links[key] = name
	}
	return both(from, to, entry, unix.O_RDONLY, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, func(from, to int) error {
		if err := copyBytes(from, to, info.Size); err != nil {
			return &os.PathError{Op: "copy", Path: name, Err: err}
		}
		return errors.Join(copyAttributes(from, to, name), pathError("fsync", name, t.sync(to)))
	})
}

// copyBytes shares the blocks where the file system can, and copies otherwise.
func copyBytes(from, to int, size int64) error {
	if unix.IoctlFileClone(to, from) == nil {
		return nil
	}
	source, err := dupFile(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := dupFile(to)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	_, err = io.Copy(target, io.LimitReader(source, size)) // copy_file_range(2) where the kernel can
	return err
}

func dupFile(fd int) (*os.File, error) {
	duplicate, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(duplicate), ""), nil
}

func copyLink(from, to int, entry, name string, info unix.Stat_t) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from, entry, target)
	if err == nil {
		err = unix.Symlinkat(string(target[:n]), to, entry)
	}
	if err == nil {
		err = unix.Fchownat(to, entry, int(info.Uid), int(info.Gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.UtimesNanoAt(to, entry, []unix.Timespec{info.Atim, info.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	}
	return pathError("copy link", name, err)
}

// copyAttributes copies owner, mode, extended attributes and times.
func copyAttributes(from, to int, name string) error {
	var info unix.Stat_t
	err := unix.Fstat(from, &info)
	if err == nil {
		err = unix.Fchown(to, int(info.Uid), int(info.Gid))
	}
	if err == nil {
		err = unix.Fchmod(to, info.Mode&0o7777) // after the owner, whose change clears set-user-id
	}
	if err == nil {
		err = copyExtended(from, to)
	}
	if err == nil {
		times := []unix.Timeval{unix.NsecToTimeval(info.Atim.Nano()), unix.NsecToTimeval(info.Mtim.Nano())}
		err = unix.Futimes(to, times)
	}
	return pathError("copy attributes", name, err)
}

// copyExtended copies the extended attributes that an image can have.
func copyExtended(from, to int) error {
	names := make([]byte, maxAttribute)
	n, err := unix.Flistxattr(from, names)
	if err == unix.ENOTSUP {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, maxAttribute)
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		// The overlay's own, and labels of the host's policy, are not the image's.
		if !strings.HasPrefix(name, "user.") && name != "security.capability" {
			continue
		}
		length, err := unix.Fgetxattr(from, name, value)
		if err == nil {
			err = unix.Fsetxattr(to, name, value[:length], 0)
		}
		if err != nil && err != unix.ENOTSUP {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// both opens the same entry of two directories.
func both(from, to int, entry string, readFlags, writeFlags int, use func(from, to int) error) error {
	source, err := unix.Openat(from, entry, readFlags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: entry, Err: err}
	}
	defer func() { _ = unix.Close(source) }()
	target, err := unix.Openat(to, entry, writeFlags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: entry, Err: err}
	}
	defer func() { _ = unix.Close(target) }()
	return use(source, target)
}
