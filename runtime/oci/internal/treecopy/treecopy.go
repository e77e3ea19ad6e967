// Package treecopy copies what a container has written, the upper layer of its overlay, while the
// container's processes may be changing it.
//
// Everything in the source is hostile. Directories are read by their descriptors, symbolic links
// are never followed, and nothing but a regular file is opened for reading. A copy is made in three
// steps: [Copy.Stage] copies files while processes run; [Copy.Compare], while they are stopped,
// copies what has changed since; and [Copy.Complete], when they run again, takes all other files
// from what was staged and from an earlier copy.
package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	// maxDepth bounds how many directories are nested: each takes two descriptors.
	maxDepth = 1000
	// maxPath bounds the paths in a copy, in bytes: files are linked by their paths.
	maxPath = 4000
	// maxFiles and maxNames bound the names in a copy, and the bytes of their paths: they are kept
	// in memory.
	maxFiles, maxNames = 500_000, 64 << 20
	// A copy leaves a twentieth of the disk free, in bytes at most maxReserve, and in inodes: a
	// full disk is to fail a copy, and nothing else.
	reservedPart, maxReserve = 20, 2 << 30
	// MinBytes is what any file is counted as at least: its inode.
	MinBytes = 512
)

// Settle is the age that the last change of a file must have for the time of the change to prove
// that no later one has the same time. The kernel's clock for that ticks every 1 to 10 ms, and a
// write that goes around the page cache changes a file until the disk answers.
const Settle = 200 * time.Millisecond

// Stat is what of a file changes whenever its content or an attribute does.
type Stat struct {
	Inode                   uint64
	Size, Modified, Changed int64 // bytes, and nanoseconds since 1970
}

func statOf(info *unix.Stat_t) Stat {
	return Stat{Inode: info.Ino, Size: info.Size, Modified: info.Mtim.Nano(), Changed: info.Ctim.Nano()}
}

// settled reports whether the time of a file's last change proves that it has not changed up to a
// moment.
func (s Stat) settled(at time.Time) bool { return s.Changed < at.Add(-Settle).UnixNano() }

// Tree is an earlier copy of the same directory.
type Tree struct {
	Root  *os.File
	Index Index
}

// Copy is one copy of a directory. The methods are not called from several goroutines at once.
type Copy struct {
	From    *os.File // the directory
	Staging *os.File // an empty directory on the file system of the copy; Stage fills it
	// Previous is what unchanged files are linked from; nil for nothing.
	Previous *Tree
	// MaxBytes bounds what the copy adds to the disk ([Result].Exclusive); 0 means no bound.
	MaxBytes int64

	staged      map[uint64]Stat // files of Staging, which are named by their inodes, as they were copied
	stagedBytes int64
	noClone     bool // the file systems do not share blocks
	noRange     bool // nor does the kernel copy between them
	later       []later
	times       []directoryTimes
	untimed     bool // the source's file system does not record when a mapped file is written to
	names       []byte
	value       []byte
	buffer      []byte
}

// Left is what a [Copy.Stage] has not copied, because it has changed too short a time ago.
type Left struct {
	Files int
	Bytes int64
}

// Result describes a finished copy.
type Result struct {
	Index            Index
	Files            int   // names
	Bytes, Exclusive int64 // blocks of all files, and of those that were not linked from Previous
}

// prepare makes what every step needs.
func (c *Copy) prepare() error {
	if c.staged != nil {
		return nil
	}
	var info unix.Statfs_t
	if err := unix.Fstatfs(int(c.From.Fd()), &info); err != nil {
		return &os.PathError{Op: "statfs", Path: c.From.Name(), Err: err}
	}
	if err := c.CheckRoom(0); err != nil {
		return err
	}
	c.untimed = info.Type == unix.TMPFS_MAGIC
	c.staged = map[uint64]Stat{}
	c.names, c.value, c.buffer = make([]byte, maxAttributes), make([]byte, maxAttributes), make([]byte, pieceBytes)
	return nil
}

// entries calls visit for each name in a directory.
func entries(ctx context.Context, directory *os.File, visit func(entry string) error) error {
	for {
		names, err := directory.Readdirnames(256)
		for _, entry := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := visit(entry); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// openDirectory opens a directory in another one.
func openDirectory(in *os.File, entry string) (*os.File, error) {
	fd, err := unix.Openat(int(in.Fd()), entry, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: shown(entry), Err: err}
	}
	return os.NewFile(uintptr(fd), entry), nil
}

// reopen opens a directory again, to read it from its begin.
func reopen(directory *os.File) (*os.File, error) { return openDirectory(directory, ".") }

var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file for reading. Whatever else is there is not opened: opening a
// device has effects of its own.
func openRegular(in *os.File, entry string) (fd int, info unix.Stat_t, err error) {
	at, err := openPath(in, entry)
	if err != nil {
		return -1, info, err
	}
	defer func() { _ = unix.Close(at) }()
	if err := unix.Fstat(at, &info); err != nil {
		return -1, info, &os.PathError{Op: "stat", Path: shown(entry), Err: err}
	}
	if info.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, info, errNotRegular
	}
	fd, err = unix.Open(descriptorPath(at), unix.O_RDONLY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, info, &os.PathError{Op: "open", Path: shown(entry), Err: err}
	}
	return fd, info, nil
}

// openPath opens an entry of a directory, of any kind, as a path only.
func openPath(in *os.File, entry string) (int, error) {
	fd, err := unix.Openat(int(in.Fd()), entry, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: shown(entry), Err: err}
	}
	return fd, nil
}

// descriptorPath is a path of what a descriptor has open, also of a symbolic link itself.
func descriptorPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// shown is a path of the container's in a message.
func shown(name string) string { return fmt.Sprintf("%.200q", name) }

// Blocks is what a file takes on the disk, in bytes.
func Blocks(info *unix.Stat_t) int64 { return max(info.Blocks*512, MinBytes) }

// CheckRoom returns an error that wraps [engine.ErrNoRoom] when the disk of the copy has no room
// for more bytes besides what is left to others. It is asked again and again: others write, too.
func (c *Copy) CheckRoom(more int64) error {
	var info unix.Statfs_t
	if err := unix.Fstatfs(int(c.Staging.Fd()), &info); err != nil {
		return &os.PathError{Op: "statfs", Path: c.Staging.Name(), Err: err}
	}
	size, free := int64(info.Blocks)*info.Bsize, int64(info.Bavail)*info.Bsize //nolint:gosec // a disk has fewer bytes
	switch {
	case free-more < min(size/reservedPart, maxReserve):
		return fmt.Errorf("%w: %d bytes are left, too few besides what is kept for containers", engine.ErrNoRoom, free)
	case info.Files > 0 && info.Ffree < info.Files/reservedPart: // some file systems have no bound
		return fmt.Errorf("%w: %d inodes are left, which are kept for containers", engine.ErrNoRoom, info.Ffree)
	}
	return nil
}

// child is the path of an entry. The error wraps [engine.ErrInvalid] where a copy cannot have it.
func child(directory, entry string, depth int) (string, error) {
	name := path.Join(directory, entry)
	switch {
	case len(name) > maxPath:
		return "", fmt.Errorf("%w: files: %s...: a path of more than %d bytes", engine.ErrInvalid, shown(name), maxPath)
	case depth > maxDepth:
		return "", fmt.Errorf("%w: files: %s...: directories nested deeper than %d levels", engine.ErrInvalid, shown(name), maxDepth)
	}
	return name, nil
}

// exceeds returns an error that wraps [engine.ErrSnapshotTooLarge] when a copy is larger than it
// may be.
func (c *Copy) exceeds(files int, bytes, names int64) error {
	const between = 1024 // files
	if files%between == between-1 {
		if err := c.CheckRoom(0); err != nil {
			return err
		}
	}
	switch {
	case c.MaxBytes > 0 && bytes > c.MaxBytes:
		return fmt.Errorf("%w: the container has written more than %d bytes since the last snapshot", engine.ErrSnapshotTooLarge, c.MaxBytes)
	case files > maxFiles:
		return fmt.Errorf("%w: the container has written more than %d files", engine.ErrSnapshotTooLarge, maxFiles)
	case names > maxNames:
		return fmt.Errorf("%w: the paths of the files that the container has written are longer than %d bytes", engine.ErrSnapshotTooLarge, maxNames)
	}
	return nil
}

// inPrevious reports whether the previous copy has the file as it is.
//
// One with so many names that the file system may refuse more is not: it is copied, and counted.
func (c *Copy) inPrevious(stat Stat, names uint64) (at string, ok bool) {
	if c.Previous == nil || c.untimed {
		return "", false
	}
	file, ok := c.Previous.Index[stat.Inode]
	if !ok || file.Stat != stat {
		return "", false
	}
	var info unix.Stat_t
	if names > 1 && (unix.Fstatat(int(c.Previous.Root.Fd()), file.Path, &info, unix.AT_SYMLINK_NOFOLLOW) != nil || uint64(info.Nlink)+names > maxLinks) {
		return "", false
	}
	return file.Path, true
}

// maxLinks is how many names a file of ext4 can have.
const maxLinks = 65000
