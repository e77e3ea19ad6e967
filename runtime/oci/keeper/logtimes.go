package keeper

import (
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stampsSuffix is of the file beside a log with the times of what is in it.
	stampsSuffix = ".stamps"
	// stampBytes is what a stamp takes in the file: where in all that the container has printed,
	// and the time in nanoseconds since 1970, little-endian.
	stampBytes = 16
	// StampPause is how far apart stamps are at least, so that a container that prints all the time
	// makes few.
	StampPause = 100 * time.Millisecond
	// maxStamps bounds the file at 1 MiB. What comes later in the same log has the time of the last
	// stamp.
	maxStamps = 1 << 16
)

// Stamp says that what a container has printed from Offset on was printed at that time or later.
type Stamp struct {
	Offset int64
	At     time.Time
}

// stamp records that what the container has printed from offset on was printed about now. Without
// stamps a log can be read all the same, so an error makes no difference.
func (l *logFile) stamp(offset int64, now time.Time) {
	if now.Sub(l.stamped) < StampPause && !now.Before(l.stamped) || l.stamps >= maxStamps {
		return
	}
	l.stamped = now
	fd, err := unix.Open(l.path+stampsSuffix, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var entry [stampBytes]byte
	binary.LittleEndian.PutUint64(entry[:8], uint64(offset))
	binary.LittleEndian.PutUint64(entry[8:], uint64(now.UnixNano()))
	if n, err := unix.Write(fd, entry[:]); err == nil && n == stampBytes {
		l.stamps++
	}
}

// countStamps finds out how many stamps the log has, when it is opened.
func (l *logFile) countStamps() {
	var info unix.Stat_t
	l.stamps, l.stamped = 0, time.Time{}
	if unix.Lstat(l.path+stampsSuffix, &info) == nil {
		l.stamps = int(min(info.Size/stampBytes, maxStamps))
	}
}

// renameStamps lets the stamps go with a log that becomes the one before. A kill before may leave
// them with the next log: offsets say which they belong to.
func (l *logFile) renameStamps() {
	if err := os.Rename(l.path+stampsSuffix, l.path+".1"+stampsSuffix); err != nil {
		_ = os.Remove(l.path + stampsSuffix) // it would grow
	}
}

// ReadStamps returns the stamps beside a log file, in order, none if there is no such file.
func ReadStamps(log string) ([]Stamp, error) {
	content, err := os.ReadFile(log + stampsSuffix)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	stamps := make([]Stamp, 0, len(content)/stampBytes)
	for ; len(content) >= stampBytes; content = content[stampBytes:] {
		stamps = append(stamps, Stamp{
			Offset: int64(binary.LittleEndian.Uint64(content)),
			At:     time.Unix(0, int64(binary.LittleEndian.Uint64(content[8:]))),
		})
	}
	return stamps, nil
}
