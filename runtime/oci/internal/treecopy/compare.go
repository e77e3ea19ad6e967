package treecopy

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// Compare copies the source, which no process has changed since a moment and none changes now, to
// an empty directory, but for the files that Staging or Previous has as they are: Complete adds
// them. The copy has contents, owners, modes, times, extended attributes, hard links, holes,
// symbolic links, FIFOs, sockets and device nodes.
//
// The error wraps [engine.ErrSnapshotTooLarge] or [engine.ErrInvalid] where the source cannot be
// copied.
func (c *Copy) Compare(ctx context.Context, to *os.File, still time.Time) (Result, error) {
	if err := c.prepare(); err != nil {
		return Result{}, err
	}
	root, err := reopen(c.From)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = root.Close() }()
	c.later, c.times = nil, nil
	f := &comparison{Copy: c, ctx: ctx, still: still, links: map[uint64]string{}, result: Result{Index: Index{}}}
	var info unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &info); err != nil {
		return Result{}, &os.PathError{Op: "stat", Path: root.Name(), Err: err}
	}
	if err := f.directory(root, to, "", 0); err != nil {
		return Result{}, err
	}
	f.index(&info, "")
	return f.result, nil
}

// comparison is one call of Compare.
type comparison struct {
	*Copy
	ctx    context.Context //nolint:containedctx // of the call
	still  time.Time
	links  map[uint64]string // files with several names, by the first one
	names  int64             // bytes
	result Result
}

// directory copies what is in a directory, and then the attributes of the directory.
func (f *comparison) directory(from, to *os.File, name string, depth int) error {
	err := entries(f.ctx, from, func(entry string) error {
		below, err := child(name, entry, depth)
		if err != nil {
			return err
		}
		return f.entry(from, to, entry, below, depth)
	})
	if err != nil {
		return err
	}
	if err := f.directoryAttributes(from, to, name); err != nil {
		return err
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &info); err != nil {
		return &os.PathError{Op: "stat", Path: shown(name), Err: err}
	}
	f.times = append(f.times, directoryTimes{directory: name, times: [2]unix.Timespec{info.Atim, info.Mtim}})
	return nil
}

func (f *comparison) entry(from, to *os.File, entry, name string, depth int) error {
	var info unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), entry, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "stat", Path: shown(name), Err: err}
	}
	f.result.Files++
	f.names += int64(len(name))
	if info.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := f.adds(&info); err != nil {
			return err
		}
		f.index(&info, name)
		return f.subdirectory(from, to, entry, name, depth)
	}
	if info.Nlink > 1 {
		if first, ok := f.links[info.Ino]; ok {
			f.later = append(f.later, later{kind: linkName, from: first, to: name})
			return f.exceeds(f.result.Files, 0, f.names)
		}
		f.links[info.Ino] = name
	}
	if info.Mode&unix.S_IFMT == unix.S_IFREG {
		return f.regular(from, to, entry, name, &info)
	}
	if err := f.adds(&info); err != nil {
		return err
	}
	f.index(&info, name)
	return f.special(from, to, entry, entry, &info)
}

// index records what an entry was like, if a later change of it is seen by that.
func (f *comparison) index(info *unix.Stat_t, name string) {
	if stat := statOf(info); !f.untimed && stat.settled(f.still) {
		f.result.Index[stat.Inode] = File{Stat: stat, Path: name}
	}
}

// adds counts what the copy needs room for.
func (f *comparison) adds(info *unix.Stat_t) error {
	f.result.Bytes += Blocks(info)
	f.result.Exclusive += Blocks(info)
	return f.exceeds(f.result.Files, f.result.Exclusive, f.names)
}

func (f *comparison) subdirectory(from, to *os.File, entry, name string, depth int) error {
	if err := unix.Mkdirat(int(to.Fd()), entry, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: shown(name), Err: err}
	}
	source, err := openDirectory(from, entry)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := openDirectory(to, entry)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	return f.directory(source, target, name, depth+1)
}

// regular puts a regular file into the copy, if possible without copying the content.
func (f *comparison) regular(from, to *os.File, entry, name string, info *unix.Stat_t) error {
	stat := statOf(info)
	if f.linked(name, stat, uint64(info.Nlink)) {
		f.result.Bytes += Blocks(info)
		f.result.Index[stat.Inode] = File{Stat: stat, Path: name}
		return f.exceeds(f.result.Files, 0, f.names)
	}
	if err := f.adds(info); err != nil {
		return err
	}
	if f.moved(name, stat) {
		f.result.Index[stat.Inode] = File{Stat: stat, Path: name}
		return nil
	}
	source, opened, err := openRegular(from, entry)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(source) }()
	written, err := f.file(f.ctx, source, &opened, to, entry)
	if err != nil {
		return err
	}
	if written && !f.untimed && statOf(&opened) == stat && stat.settled(f.still) {
		f.result.Index[stat.Inode] = File{Stat: stat, Path: name}
	}
	return nil
}

// moved has Complete take a file from Staging, and returns false where it has changed since.
func (f *comparison) moved(name string, stat Stat) bool {
	staged, ok := f.staged[stat.Inode]
	if !ok || staged != stat {
		return false
	}
	delete(f.staged, stat.Inode)
	f.later = append(f.later, later{kind: moveStaged, from: strconv.FormatUint(stat.Inode, 10), to: name})
	return true
}

// linked has Complete take a file from Previous, and returns false where it has changed since.
func (f *comparison) linked(name string, stat Stat, names uint64) bool {
	at, ok := f.inPrevious(stat, names)
	if ok {
		f.later = append(f.later, later{kind: linkPrevious, from: at, to: name})
	}
	return ok
}

// special makes a symbolic link, a FIFO, a socket or a device node with the name, as an entry of
// another directory is.
func (c *Copy) special(from, to *os.File, entry, name string, info *unix.Stat_t) error {
	source, err := openPath(from, entry)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(source) }()
	directory := int(to.Fd())
	if info.Mode&unix.S_IFMT == unix.S_IFLNK {
		target := make([]byte, unix.PathMax)
		var n int
		if n, err = unix.Readlinkat(source, "", target); err == nil {
			err = unix.Symlinkat(string(target[:n]), directory, name)
		}
	} else {
		err = unix.Mknodat(directory, name, info.Mode, int(info.Rdev)) //nolint:gosec // a device's number
	}
	if err != nil {
		return &os.PathError{Op: "make", Path: shown(name), Err: err}
	}
	made, err := openPath(to, name)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(made) }()
	return c.attributes(source, made, to, name, info)
}

// isLimit reports whether an error says that the source cannot be copied.
func isLimit(err error) bool {
	return errors.Is(err, engine.ErrSnapshotTooLarge) || errors.Is(err, engine.ErrInvalid) || errors.Is(err, errEnough)
}
