package eventlog

import (
	"errors"
	"fmt"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

const (
	memoryLimit    = 1 << 20 // bytes of a log that stay in memory; output beyond it goes to a file
	firstSegment   = 224     // room for the init event and the terminal one; many commands say no more
	regularSegment = headerSize + maxPayload
)

// spool stores frames: the first memoryLimit bytes in memory, as long as there is some for all
// logs, and what follows in a file that has no name, so that it cannot outlive the daemon. The
// caller guards it with a lock; bytes that were stored never move and never change.
type spool struct {
	dir      string // where the file is made; empty means wherever it can be
	segments []segment
	memory   int64 // capacity of all memory segments
	shared   *Memory
	file     *os.File
	fileEnd  int64
	closed   bool

	// Where the first segment is.
	firstSegments [1]segment
	firstBytes    [firstSegment]byte
}

// segment is a run of bytes, in memory or, when data is nil, in the file.
type segment struct {
	offset     int64 // of the first byte in the spool
	size       int64
	data       []byte
	fileOffset int64
}

var errClosed = errors.New("the log has been discarded")

// append stores a frame in one piece. Output that does not fit into memory goes to the file and
// fails when that fails; the few frames that are not output then go to memory all the same.
func (s *spool) append(header, payload []byte, output bool) error {
	size := int64(len(header) + len(payload))
	if s.fits(size, output) {
		s.appendMemory(header, payload, !output) // little follows a frame that is not output, or nothing
		return nil
	}
	err := s.appendFile(header, payload)
	if err != nil && !output {
		s.appendMemory(header, payload, true)
		return nil
	}
	return err
}

// fits reports whether a frame stays in memory: nothing has gone to the file yet and the limits
// hold, that of all logs for output alone.
func (s *spool) fits(size int64, output bool) bool {
	if s.file != nil {
		return false
	}
	return s.room(size) || s.memory+size <= memoryLimit && !(output && s.shared.exceeds(MaxMemory-size))
}

func (s *spool) room(size int64) bool {
	last := s.last()
	return last != nil && last.data != nil && int64(cap(last.data)-len(last.data)) >= size
}

func (s *spool) last() *segment {
	if len(s.segments) == 0 {
		return nil
	}
	return &s.segments[len(s.segments)-1]
}

func (s *spool) end() int64 {
	if last := s.last(); last != nil {
		return last.offset + last.size
	}
	return 0
}

func (s *spool) appendMemory(header, payload []byte, exact bool) {
	size := int64(len(header) + len(payload))
	if len(s.segments) == 0 && size <= firstSegment {
		s.firstSegments[0].data = s.firstBytes[:0]
		s.segments = s.firstSegments[:]
		s.hold(firstSegment)
	}
	if !s.room(size) {
		capacity := size
		if !exact {
			capacity = max(size, min(regularSegment, max(firstSegment, 2*s.memory), memoryLimit-s.memory))
		}
		s.segments = append(s.segments, segment{offset: s.end(), data: make([]byte, 0, capacity)})
		s.hold(capacity)
	}
	last := s.last()
	last.data = append(append(last.data, header...), payload...)
	last.size = int64(len(last.data))
}

// hold counts a segment.
func (s *spool) hold(bytes int64) {
	s.memory += bytes
	s.shared.add(bytes)
}

// leave takes what the spool holds out of what is shared: the log has ended.
func (s *spool) leave() {
	s.shared.add(-s.memory)
	s.shared = nil
}

func (s *spool) appendFile(header, payload []byte) error {
	if s.closed {
		return errClosed
	}
	if s.file == nil {
		file, err := unnamedFile(s.dir)
		if err != nil {
			return err
		}
		s.file = file
	}
	size := int64(len(header) + len(payload))
	if _, err := s.file.WriteAt(header, s.fileEnd); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(payload, s.fileEnd+int64(len(header))); err != nil {
		return err
	}
	if last := s.last(); last == nil || last.data != nil {
		s.segments = append(s.segments, segment{offset: s.end(), fileOffset: s.fileEnd})
	}
	s.last().size += size
	s.fileEnd += size
	return nil
}

// at returns the bytes from offset to the end of their segment when they are in memory; otherwise
// the file and where in it they stand, and how many there are. The offset must lie before the end.
func (s *spool) at(offset int64) (data []byte, file *os.File, fileOffset, size int64, err error) {
	i := sort.Search(len(s.segments), func(i int) bool { return s.segments[i].offset > offset }) - 1
	found := s.segments[i]
	skip := offset - found.offset
	if found.data != nil {
		return found.data[skip:], nil, 0, found.size - skip, nil
	}
	if s.closed {
		return nil, nil, 0, 0, errClosed
	}
	return nil, s.file, found.fileOffset + skip, found.size - skip, nil
}

func (s *spool) close() {
	s.leave()
	s.closed = true
	if s.file != nil {
		s.file.Close() // it has no reader any more
	}
}

// unnamedFile makes a temporary file without a name, so that the kernel frees it with the last
// descriptor, and no other process can open it. An image may have no /tmp; such a file is as good
// anywhere. Where the file system has none it has a name for a moment.
func unnamedFile(dir string) (*os.File, error) {
	var errs []error
	for _, candidate := range []string{dir, os.TempDir(), "/var/tmp", "/"} {
		if candidate == "" {
			continue
		}
		fd, err := unix.Open(candidate, unix.O_TMPFILE|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), candidate), nil
		}
		file, err := os.CreateTemp(candidate, ".execd-log-*")
		if err == nil {
			if err = os.Remove(file.Name()); err == nil {
				return file, nil
			}
			file.Close()
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no directory takes a temporary file: %w", errors.Join(errs...))
}
