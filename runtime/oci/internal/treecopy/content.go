package treecopy

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// pieceBytes is how much is copied between two looks at the context and at the room on the disk.
const pieceBytes = 4 << 20

// file copies an open regular file, with attributes, to a new name in a directory. timed is whether
// a later change of the file, by a process that has it mapped, is seen by the times of the file.
func (c *Copy) file(ctx context.Context, from int, info *unix.Stat_t, directory *os.File, entry string) (timed bool, err error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	to, err := unix.Openat(int(directory.Fd()), entry, flags, 0o600)
	if err != nil {
		return false, &os.PathError{Op: "make", Path: shown(entry), Err: err}
	}
	defer func() { _ = unix.Close(to) }()
	// The kernel sets the times when a mapped page that is clean is written to, and not again
	// before the page was written back. So write-back of dirty pages begins here.
	timed = unix.SyncFileRange(from, 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE) == nil
	if err := c.content(ctx, from, to, info.Size); err != nil {
		return false, &os.PathError{Op: "copy", Path: shown(entry), Err: err}
	}
	return timed, c.attributes(from, to, directory, entry, info)
}

// content shares the blocks where the file systems can, and copies what is no hole otherwise.
func (c *Copy) content(ctx context.Context, from, to int, size int64) error {
	if size == 0 {
		return nil
	}
	if !c.noClone {
		err := unix.IoctlFileClone(to, from)
		if err == nil {
			return unix.Ftruncate(to, size)
		}
		c.noClone = isUnsupported(err)
	}
	for offset := int64(0); offset < size; {
		// On ext4 and btrfs this waits for a write in progress, which has set the times already.
		start, err := unix.Seek(from, offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && start >= size { // a hole up to the end
			break
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(from, start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min(end, size)
		if err := c.piece(ctx, from, to, start, end); err != nil {
			return err
		}
		offset = end
	}
	return unix.Ftruncate(to, size)
}

func isUnsupported(err error) bool {
	for _, cause := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// piece copies the bytes from start to end. A file that was truncated meanwhile has fewer.
func (c *Copy) piece(ctx context.Context, from, to int, start, end int64) error {
	for start < end {
		length := int(min(end-start, pieceBytes))
		if err := errors.Join(ctx.Err(), c.CheckRoom(int64(length))); err != nil {
			return err
		}
		n, err := c.some(from, to, start, length)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		start += int64(n)
	}
	return nil
}

// some copies some bytes at an offset.
func (c *Copy) some(from, to int, offset int64, length int) (int, error) {
	if !c.noRange {
		in, out := offset, offset
		n, err := unix.CopyFileRange(from, &in, to, &out, length, 0)
		if err == nil || !isUnsupported(err) {
			return n, err
		}
		c.noRange = true
	}
	n, err := unix.Pread(from, c.buffer[:length], offset)
	if err != nil || n == 0 {
		return 0, err
	}
	for written := 0; written < n; {
		m, err := unix.Pwrite(to, c.buffer[written:n], offset+int64(written))
		if err != nil {
			return written, err
		}
		written += m
	}
	return n, nil
}
