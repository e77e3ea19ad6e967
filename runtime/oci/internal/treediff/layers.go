// Package treediff compares two states of a root file system, each of which is a stack of layers as
// overlayfs mounts them, and writes the difference as a layer of an image.
//
// Everything in the layers is hostile, but does not change. No symbolic link is followed, also not
// by the kernel, and nothing but a regular file is opened for reading.
package treediff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	// maxDepth bounds how many directories are nested.
	maxDepth = 1000
	// maxNames bounds the names that are in memory at a moment, in bytes; each counts nameBytes
	// more.
	maxNames, nameBytes = 128 << 20, 32
)

// layers are the directories of layers, which are named by their positions.
type layers struct {
	roots []*os.File
	index map[string]int
}

// open opens the directories of both states, each once.
func open(states ...[]string) (*layers, error) {
	l := &layers{index: map[string]int{}}
	for _, directory := range slices.Concat(states...) {
		if _, ok := l.index[directory]; ok {
			continue
		}
		root, err := os.OpenFile(directory, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			l.close()
			return nil, err
		}
		l.index[directory] = len(l.roots)
		l.roots = append(l.roots, root)
	}
	return l, nil
}

func (l *layers) close() {
	for _, root := range l.roots {
		_ = root.Close()
	}
}

// stack returns the positions of the layers of a state, which are given lowest first, highest
// first.
func (l *layers) stack(state []string) []int {
	stack := make([]int, 0, len(state))
	for _, directory := range slices.Backward(state) {
		stack = append(stack, l.index[directory])
	}
	return stack
}

// openAt opens something below the root of a layer, where no part of the name may be a symbolic
// link.
func (l *layers) openAt(layer int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(int(l.roots[layer].Fd()), path.Join(".", name), &how)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return -1, &os.PathError{Op: "open", Path: shown(name), Err: err}
		}
		return fd, nil
	}
}

// directory is a directory of one state or of both, with what is open of it in the layers.
type directory struct {
	layers *layers
	name   string
	open   map[int]int // descriptors, by layers
}

func (f *directory) at(layer int) (int, error) {
	if fd, ok := f.open[layer]; ok {
		return fd, nil
	}
	fd, err := f.layers.openAt(layer, f.name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		f.open[layer] = fd
	}
	return fd, err
}

// close closes what is open; it is opened again where it is needed.
func (f *directory) close() {
	for _, fd := range f.open {
		_ = unix.Close(fd)
	}
	clear(f.open)
}

// file is what a state has at a name.
type file struct {
	info  unix.Stat_t
	layer int   // which has it
	stack []int // of a directory, all layers that have something of it, highest first
}

func (f *file) kind() uint32 { return f.info.Mode & unix.S_IFMT }

func (f *file) isDirectory() bool { return f.kind() == unix.S_IFDIR }

// same reports whether both are one and the same file of a layer.
func (f *file) same(other *file) bool {
	return f.info.Dev == other.info.Dev && f.info.Ino == other.info.Ino && slices.Equal(f.stack, other.stack)
}

// find returns what a stack of layers has at an entry of the directory; nil for nothing.
func (f *directory) find(stack []int, entry string) (*file, error) {
	var found *file
	for _, layer := range stack {
		in, err := f.at(layer)
		if err != nil {
			return nil, err
		}
		var info unix.Stat_t
		err = unix.Fstatat(in, entry, &info, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "stat", Path: shown(path.Join(f.name, entry)), Err: err}
		}
		isDirectory := info.Mode&unix.S_IFMT == unix.S_IFDIR
		if isWhiteout(&info) || found != nil && !isDirectory {
			return found, nil
		}
		if found == nil {
			found = &file{info: info, layer: layer}
		}
		if !isDirectory {
			return found, nil
		}
		found.stack = append(found.stack, layer)
		opaque, err := f.isOpaque(layer, entry)
		if err != nil || opaque {
			return found, err
		}
	}
	return found, nil
}

// isWhiteout reports whether a file of a layer hides what the layers below have.
func isWhiteout(info *unix.Stat_t) bool {
	return info.Mode&unix.S_IFMT == unix.S_IFCHR && info.Rdev == 0
}

// isOpaque reports whether a directory of a layer hides what the layers below have in it.
func (f *directory) isOpaque(layer int, entry string) (bool, error) {
	in, err := f.at(layer)
	if err != nil {
		return false, err
	}
	name := path.Join(f.name, entry)
	fd, err := unix.Openat(in, entry, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: shown(name), Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	value := make([]byte, 16)
	if _, err := unix.Fgetxattr(fd, "trusted.overlay.redirect", value); !isNoAttribute(err) {
		return false, fmt.Errorf("%w: files: %s: the directory was renamed by a kernel whose overlay file systems redirect", engine.ErrInvalid, shown(name))
	}
	n, err := unix.Fgetxattr(fd, "trusted.overlay.opaque", value)
	if isNoAttribute(err) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "read the attributes of", Path: shown(name), Err: err}
	}
	return string(value[:n]) == "y", nil
}

func isNoAttribute(err error) bool {
	return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP)
}

// shown is a path of the container's in a message.
func shown(name string) string { return fmt.Sprintf("%.200q", name) }

// names returns the names that any of the layers has in the directory, sorted. take counts their
// bytes.
func (f *directory) names(ctx context.Context, stack []int, take func(bytes int) error) ([]string, error) {
	var names []string
	for _, layer := range stack {
		in, err := f.at(layer)
		if err != nil {
			return nil, err
		}
		again, err := unix.Openat(in, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: shown(f.name), Err: err}
		}
		directory := os.NewFile(uintptr(again), f.name)
		err = readNames(ctx, directory, func(read []string) error {
			bytes := 0
			for _, name := range read {
				bytes += len(name) + nameBytes
			}
			names = append(names, read...)
			return take(bytes)
		})
		_ = directory.Close()
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(names, strings.Compare)
	return slices.Compact(names), nil
}
