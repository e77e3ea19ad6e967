package unpack

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Bounds of what is kept in memory of a layer's names.
const (
	maxImplied      = 256 << 10 // bytes
	impliedOverhead = 16        // bytes per directory
	maxLeftOut      = 1000      // devices
)

// addImplied notes that the directory was made without an entry of its own.
func (l *layer) addImplied(name string, fd int) error {
	size := len(name) + impliedOverhead
	if l.impliedBytes+size > maxImplied {
		return nil
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("look at directory: %w", err)
	}
	if l.implied == nil {
		l.implied = map[uint64]string{}
	}
	if before, ok := l.implied[stat.Ino]; ok { // of a directory that was replaced
		l.impliedBytes -= len(before) + impliedOverhead
	}
	l.implied[stat.Ino] = name
	l.impliedBytes += size
	return nil
}

// dropImplied notes that the directory has an entry.
func (l *layer) dropImplied(fd int) error {
	if len(l.implied) == 0 {
		return nil
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("look at directory: %w", err)
	}
	if name, ok := l.implied[stat.Ino]; ok {
		l.impliedBytes -= len(name) + impliedOverhead
		delete(l.implied, stat.Ino)
	}
	return nil
}

// listImplied puts those that are still there into the result.
func (l *layer) listImplied() error {
	size := int64(0)
	for inode, name := range l.implied {
		now, err := l.inodeOf(name)
		if err != nil {
			return err
		}
		if now != inode {
			continue // a later entry replaced it, or a directory above it
		}
		l.result.Implied = append(l.result.Implied, name)
		size += int64(len(name) + impliedOverhead)
	}
	if size == 0 {
		return nil
	}
	slices.Sort(l.result.Implied)
	return l.take(inBlocks(size))
}

// inodeOf returns the number of a directory, 0 when there is none of that name or a symbolic link
// leads to it.
func (l *layer) inodeOf(name string) (uint64, error) {
	fd, err := unix.Openat2(l.root, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("look at directory: %w", err)
	}
	return stat.Ino, nil
}

// leaveOut makes nothing of a device, and remembers it for hard links to it.
func (l *layer) leaveOut(name string) error {
	if l.leftOut == nil {
		l.leftOut = map[string]bool{}
	}
	if len(l.leftOut) < maxLeftOut {
		l.leftOut[name] = true
	}
	return nil
}
