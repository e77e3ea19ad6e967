package treediff

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/treecopy"
)

const (
	// maxMerged bounds the names in a merged layer.
	maxMerged = 2_000_000
	// maxLinks is how many names a file of ext4 can have.
	maxLinks = 65000
	// opaqueAttribute is what marks a directory that hides what the layers below have in it.
	opaqueAttribute = "trusted.overlay.opaque"
)

// Merged describes a merged layer. Bytes are the blocks of what all its names stand for, and
// Exclusive those of what is not a link to a file of the layers that were merged.
type Merged struct {
	Files            int
	Bytes, Exclusive int64
}

// Merge makes one layer, in an empty directory, of the files that the second state has above the
// first one: with the layers of the first one below, the new layer shows the second state. Files
// are hard links to those of the layers, which are on the same file system, and never change.
// Directories are made, and whiteouts of files of the first state. maxBytes bounds Exclusive; 0
// means no bound.
//
// Merge returns [engine.ErrNoRoom], [engine.ErrSnapshotTooLarge] and [engine.ErrInvalid].
func Merge(ctx context.Context, states States, to *os.File, maxBytes int64) (Merged, error) {
	m := &merge{to: to, below: len(states.From), maxBytes: maxBytes, copies: map[inode]string{}}
	if err := treecopy.CheckRoom(to); err != nil {
		return Merged{}, err
	}
	if err := walkStates(ctx, states, m.visit); err != nil {
		return Merged{}, err
	}
	if err := m.leave(func(string) bool { return true }); err != nil {
		return Merged{}, err
	}
	return m.Merged, nil
}

// merge is one call of Merge. Paths in the new layer lead through directories alone.
type merge struct {
	Merged
	to          *os.File
	below       int // how many layers the first state has, which are the first ones
	maxBytes    int64
	opaque      *string           // the directory that hides everything below it, and that is being filled
	copies      map[inode]string  // files that were copied and not linked, by their first names
	whiteout    string            // another name for it is another whiteout; empty for none
	directories []mergedDirectory // those that are being filled, each one in the one before it
}

// mergedDirectory is a directory with the times that it has once everything is in it.
type mergedDirectory struct {
	name               string
	accessed, modified unix.Timespec
}

func (m *merge) visit(w *walk, c change) error {
	if err := m.leave(func(directory string) bool { return !isIn(c.name, directory) }); err != nil {
		return err
	}
	if m.opaque != nil && !isIn(c.name, *m.opaque) {
		m.opaque = nil
	}
	switch {
	case c.to == nil && m.opaque != nil: // it is hidden with everything in the directory
		return nil
	case c.to == nil:
		return m.hide(c)
	case c.to.isDirectory():
		return m.directory(w, c)
	}
	return m.file(w.ctx, c)
}

// leave gives the directories that are full the times that they have.
func (m *merge) leave(full func(directory string) bool) error {
	for n := len(m.directories); n > 0 && full(m.directories[n-1].name); n-- {
		f := m.directories[n-1]
		times := []unix.Timespec{f.accessed, f.modified}
		if err := unix.UtimesNanoAt(int(m.to.Fd()), path.Join(".", f.name), times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "set the times of", Path: shown(f.name), Err: err}
		}
		m.directories = m.directories[:n-1]
	}
	return nil
}

// adds counts a name, and the blocks that it takes.
func (m *merge) adds(bytes, exclusive int64) error {
	const between = 1024 // names
	m.Files++
	m.Bytes, m.Exclusive = m.Bytes+bytes, m.Exclusive+exclusive
	switch {
	case m.Files > maxMerged:
		return fmt.Errorf("%w: the snapshots that the container lies on have more than %d names together", engine.ErrSnapshotTooLarge, maxMerged)
	case m.maxBytes > 0 && m.Exclusive > m.maxBytes:
		return fmt.Errorf("%w: the snapshots that the container lies on take more than %d bytes to merge", engine.ErrSnapshotTooLarge, m.maxBytes)
	case m.Files%between == 0:
		return treecopy.CheckRoom(m.to)
	}
	return nil
}

// hide makes a whiteout.
func (m *merge) hide(c change) error {
	in := int(m.to.Fd())
	if m.whiteout != "" {
		err := unix.Linkat(in, m.whiteout, in, c.name, 0)
		if err == nil {
			return m.adds(0, 0)
		}
		if !errors.Is(err, unix.EMLINK) {
			return &os.LinkError{Op: "link", Old: shown(m.whiteout), New: shown(c.name), Err: err}
		}
	}
	if err := unix.Mknodat(in, c.name, unix.S_IFCHR, 0); err != nil {
		return &os.PathError{Op: "make a whiteout", Path: shown(c.name), Err: err}
	}
	m.whiteout = c.name
	return m.adds(treecopy.MinBytes, treecopy.MinBytes)
}

// directory makes a directory with the attributes of its highest layer.
func (m *merge) directory(w *walk, c change) error {
	if c.name != "" {
		if err := unix.Mkdirat(int(m.to.Fd()), c.name, 0o700); err != nil {
			return &os.PathError{Op: "mkdir", Path: shown(c.name), Err: err}
		}
	}
	from, err := openDirectory(w.layers.roots[c.to.layer], c.name)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	made, err := openDirectory(m.to, c.name)
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }()
	if err := treecopy.DirectoryAttributes(from, made); err != nil {
		return err
	}
	if err := m.mark(made, c); err != nil {
		return err
	}
	info := &c.to.info
	m.directories = append(m.directories, mergedDirectory{name: c.name, accessed: info.Atim, modified: info.Mtim})
	taken := treecopy.Blocks(info)
	return m.adds(taken, taken)
}

// mark makes a directory opaque that hides a directory of the first state, and no other one: the
// highest layer may have been one above a directory of a layer that is merged.
func (m *merge) mark(made *os.File, c change) (err error) {
	hides := c.name != "" && m.opaque == nil && c.from != nil && c.from.isDirectory() && c.to.stack[len(c.to.stack)-1] >= m.below
	if hides {
		m.opaque = &c.name
		err = unix.Fsetxattr(int(made.Fd()), opaqueAttribute, []byte("y"), 0)
	} else if err = unix.Fremovexattr(int(made.Fd()), opaqueAttribute); isNoAttribute(err) {
		err = nil
	}
	if err != nil {
		return &os.PathError{Op: "mark", Path: shown(c.name), Err: err}
	}
	return nil
}

// openDirectory opens a directory below another one, where no part of the name may be a symbolic
// link.
func openDirectory(root *os.File, name string) (*os.File, error) {
	l := &layers{roots: []*os.File{root}}
	fd, err := l.openAt(0, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// file links a file of any kind, or copies it where it has too many names.
func (m *merge) file(ctx context.Context, c change) error {
	in, err := c.directory.at(c.to.layer)
	if err != nil {
		return err
	}
	info, target, base := &c.to.info, int(m.to.Fd()), path.Base(c.name)
	key := inode{info.Dev, info.Ino}
	if first, ok := m.copies[key]; ok {
		if err := unix.Linkat(target, first, target, c.name, 0); err != nil {
			return &os.LinkError{Op: "link", Old: shown(first), New: shown(c.name), Err: err}
		}
		return m.adds(0, 0)
	}
	// The file can have as many names in this layer as it has now. All of them are of one file.
	if info.Nlink <= maxLinks/2 {
		err := unix.Linkat(in, base, target, c.name, 0)
		if err == nil {
			return m.adds(treecopy.Blocks(info), 0)
		}
		if !errors.Is(err, unix.EMLINK) {
			return &os.LinkError{Op: "link", Old: shown(c.name), New: shown(c.name), Err: err}
		}
	}
	if err := treecopy.CopyFile(ctx, in, base, m.to, c.name); err != nil {
		return err
	}
	m.copies[key] = c.name
	taken := treecopy.Blocks(info)
	return m.adds(taken, taken)
}
