package keeper

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// logFile is the bounded log of a container: the file and the one before it, of limit bytes each.
type logFile struct {
	path  string
	limit int64
	fd    int   // -1 while it is not open
	begin int64 // where the file begins in all that the container has printed
	size  int64

	stamped time.Time // when the last stamp was made
	stamps  int       // how many the file has
}

func newLogFile(path string, limit int64) logFile { return logFile{path: path, limit: limit, fd: -1} }

// take moves what is in a FIFO to the log, at most max bytes, and returns how many it took out. It
// has taken everything when that is less than max.
//
// splice(2) takes out of the FIFO what it has written to the file, so that a kill between the two
// loses nothing. When the log cannot be written, what is in the FIFO is dropped: the container must
// not wait for ever.
func (l *logFile) take(fifo int, max int64) (taken int64, err error) {
	for taken < max {
		if err := l.prepare(); err != nil {
			return taken + discard(fifo, max-taken), err
		}
		n, err := unix.Splice(fifo, nil, l.fd, &l.size, int(min(max-taken, l.limit-l.size)), unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return taken, nil
		case err != nil:
			return taken + discard(fifo, max-taken), &os.PathError{Op: "splice", Path: l.path, Err: err}
		default:
			taken += n
			l.stamp(l.begin+l.size-n, time.Now())
		}
	}
	return taken, nil
}

// prepare makes sure that the file is open and has room.
func (l *logFile) prepare() error {
	if l.fd < 0 {
		if err := l.open(0); err != nil {
			return err
		}
	}
	if l.size < l.limit {
		return nil
	}
	l.close()
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return err
	}
	l.renameStamps()
	return l.open(unix.O_EXCL)
}

func (l *logFile) open(flags int) error {
	fd, err := unix.Open(l.path, flags|unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: l.path, Err: err}
	}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		unix.Close(fd)
		return &os.PathError{Op: "stat", Path: l.path, Err: err}
	}
	l.fd, l.size, l.begin = fd, info.Size, l.findBegin(fd)
	l.countStamps()
	return nil
}

// beginAttribute of a log file is where the file begins in all that the container has printed, in
// bytes. Files of earlier releases lack it.
const beginAttribute = "trusted.sandbox.begin"

// findBegin returns where an open file begins, and records it in the file when it is not there yet.
// Without the record a log can be read all the same, so an error makes no difference.
func (l *logFile) findBegin(fd int) int64 {
	if begin, ok := readBegin(fd); ok {
		return begin
	}
	begin := int64(0)
	if old, err := unix.Open(l.path+".1", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		var info unix.Stat_t
		if unix.Fstat(old, &info) == nil {
			earlier, _ := readBegin(old)
			begin = earlier + info.Size
		}
		unix.Close(old)
	}
	_ = unix.Fsetxattr(fd, beginAttribute, strconv.AppendInt(nil, begin, 10), 0)
	return begin
}

// LogBegin returns where an open log file begins in all that the container has printed, in bytes;
// false when that is not recorded.
func LogBegin(file *os.File) (int64, bool) { return readBegin(int(file.Fd())) }

func readBegin(fd int) (int64, bool) {
	var value [20]byte
	n, err := unix.Fgetxattr(fd, beginAttribute, value[:])
	if err != nil {
		return 0, false
	}
	begin, err := strconv.ParseInt(string(value[:n]), 10, 64)
	return begin, err == nil && begin >= 0
}

func (l *logFile) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
}

// discard reads what is in a FIFO, at most max bytes, and drops it.
func discard(fifo int, max int64) (dropped int64) {
	var buffer [4096]byte
	for dropped < max {
		n, err := unix.Read(fifo, buffer[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		dropped += int64(n)
	}
	return dropped
}

// readAvailable returns what a non-blocking pipe holds now, at most max bytes of it.
func readAvailable(pipe, max int) []byte {
	buffer := make([]byte, max)
	read := 0
	for read < max {
		n, err := unix.Read(pipe, buffer[read:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		read += n
	}
	return buffer[:read]
}
