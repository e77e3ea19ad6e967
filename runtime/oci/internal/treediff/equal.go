package treediff

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// overlayAttributes are the kernel's own, and mean nothing outside of their layer.
const overlayAttributes = "trusted.overlay."

// equal reports whether both files have the same type, owner, mode, extended attributes, and, but
// for directories, time of change and content.
func (w *walk) equal(c change) (bool, error) {
	a, b := &c.from.info, &c.to.info
	if !c.to.isDirectory() && (a.Size != b.Size || a.Mtim != b.Mtim) {
		return false, nil
	}
	if same, err := w.equalAttributes(c); err != nil || !same {
		return false, err
	}
	switch c.to.kind() {
	case unix.S_IFREG:
		return w.equalContent(c)
	case unix.S_IFLNK:
		return w.equalLinks(c)
	}
	return true, nil
}

// equalAttributes reports whether both files have the same type, owner, mode and extended
// attributes.
func (w *walk) equalAttributes(c change) (bool, error) {
	a, b := &c.from.info, &c.to.info
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Rdev != b.Rdev {
		return false, nil
	}
	had, err := w.attributes(c, c.from)
	if err != nil {
		return false, err
	}
	has, err := w.attributes(c, c.to)
	return maps.Equal(had, has), err
}

// openPath opens a file of any kind as a path only.
func (w *walk) openPath(c change, f *file) (int, error) {
	if c.directory == nil {
		return w.layers.openAt(f.layer, c.name, unix.O_PATH)
	}
	in, err := c.directory.at(f.layer)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Openat(in, path.Base(c.name), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: shown(c.name), Err: err}
	}
	return fd, nil
}

// openContent opens a regular file for reading.
func (w *walk) openContent(c change, f *file) (*os.File, error) {
	at, err := w.openPath(c, f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(at) }()
	var info unix.Stat_t
	err = unix.Fstat(at, &info)
	if err == nil && (info.Mode&unix.S_IFMT != unix.S_IFREG || info.Ino != f.info.Ino) {
		err = errors.New("not the regular file that it was")
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: shown(c.name), Err: err}
	}
	fd, err := unix.Open(descriptorPath(at), unix.O_RDONLY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: shown(c.name), Err: err}
	}
	return os.NewFile(uintptr(fd), c.name), nil
}

// descriptorPath is a path of what a descriptor has open, also of a symbolic link itself.
func descriptorPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// attributes returns the extended attributes of a file, without those of overlayfs.
func (w *walk) attributes(c change, f *file) (map[string]string, error) {
	fd, err := w.openPath(c, f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	at := descriptorPath(fd)
	size, err := unix.Listxattr(at, nil)
	if isNoAttribute(err) || err == nil && size == 0 {
		return nil, nil
	}
	names := make([]byte, max(size, 0))
	if err == nil {
		size, err = unix.Listxattr(at, names)
	}
	if err != nil {
		return nil, &os.PathError{Op: "list the attributes of", Path: shown(c.name), Err: err}
	}
	found := map[string]string{}
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		if name == "" || strings.HasPrefix(name, overlayAttributes) {
			continue
		}
		size, err := unix.Getxattr(at, name, nil)
		value := make([]byte, max(size, 0))
		if err == nil && size > 0 {
			_, err = unix.Getxattr(at, name, value)
		}
		if err != nil {
			return nil, &os.PathError{Op: "read an attribute of", Path: shown(c.name), Err: err}
		}
		found[name] = string(value)
	}
	return found, nil
}

func (w *walk) target(c change, f *file) (string, error) {
	fd, err := w.openPath(c, f)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", target)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: shown(c.name), Err: err}
	}
	return string(target[:n]), nil
}

func (w *walk) equalLinks(c change) (bool, error) {
	before, err := w.target(c, c.from)
	if err != nil {
		return false, err
	}
	after, err := w.target(c, c.to)
	return before == after, err
}

// equalContent compares what two regular files of one size and time have, without their holes.
func (w *walk) equalContent(c change) (bool, error) {
	if c.from.info.Dev == c.to.info.Dev && c.from.info.Ino == c.to.info.Ino {
		return true, nil
	}
	from, err := w.openContent(c, c.from)
	if err != nil {
		return false, err
	}
	defer func() { _ = from.Close() }()
	to, err := w.openContent(c, c.to)
	if err != nil {
		return false, err
	}
	defer func() { _ = to.Close() }()
	before, after := make([]byte, pieceBytes), make([]byte, pieceBytes)
	for {
		if err := w.ctx.Err(); err != nil {
			return false, err
		}
		n, err := io.ReadFull(from, before)
		m, errOther := io.ReadFull(to, after)
		if n != m || !bytes.Equal(before[:n], after[:m]) {
			return false, nil
		}
		if isEnd(err) && isEnd(errOther) {
			return true, nil
		}
		if err = errors.Join(err, errOther); err != nil {
			return false, &os.PathError{Op: "compare", Path: shown(c.name), Err: err}
		}
	}
}

// pieceBytes is how much is read between two looks at the context.
const pieceBytes = 256 << 10

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
