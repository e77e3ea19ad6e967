package unpack

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// timesBuffer is how many bytes of the times of directories are kept in memory.
const timesBuffer = 64 << 10

// directoryTimes are times of directories with their names, in the order of the archive. An archive
// may have millions, and repeat its directories: what the buffer has no room for goes to a file,
// which no directory has.
type directoryTimes struct {
	buffer []byte
	file   *os.File // nil until it is needed
}

// directoryTime precedes the name in a record.
type directoryTime struct {
	Times [4]int64 // seconds and nanoseconds, of the last access and of the last change
	Name  uint16   // its length
}

// addTimes records the times of a directory for setDirectoryTimes.
func (l *layer) addTimes(name string, times [2]unix.Timespec) error {
	record := directoryTime{Name: uint16(len(name))} // at most maxName
	for i, at := range times {
		record.Times[2*i], record.Times[2*i+1] = at.Unix()
	}
	buffer, err := binary.Append(l.times.buffer, binary.LittleEndian, record)
	if err != nil {
		return err
	}
	l.times.buffer = append(buffer, name...)
	if len(l.times.buffer) < timesBuffer {
		return nil
	}
	return l.spillTimes()
}

// spillTimes empties the buffer into the file.
func (l *layer) spillTimes() error {
	t := &l.times
	if t.file == nil {
		fd, err := unix.Openat(l.root, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("make file for times of directories: %w", err)
		}
		t.file = os.NewFile(uintptr(fd), "times of directories")
	}
	if l.reserve != nil {
		if err := l.reserve(int64(len(t.buffer))); err != nil {
			return err
		}
	}
	_, err := t.file.Write(t.buffer)
	t.buffer = t.buffer[:0]
	return err
}

// setDirectoryTimes gives the directories the times of their last entries.
func (l *layer) setDirectoryTimes() error {
	var source io.Reader = bytes.NewReader(l.times.buffer)
	if file := l.times.file; file != nil {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		source = bufio.NewReaderSize(io.MultiReader(file, source), timesBuffer)
	}
	for {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		var record directoryTime
		if err := binary.Read(source, binary.LittleEndian, &record); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read times of directories: %w", err)
		}
		name := make([]byte, record.Name)
		if _, err := io.ReadFull(source, name); err != nil {
			return fmt.Errorf("read times of directories: %w", err)
		}
		if err := l.setDirectoryTime(string(name), record.Times); err != nil {
			return err
		}
	}
}

func (l *layer) setDirectoryTime(name string, at [4]int64) error {
	parentName, base := split(name)
	if base == "" {
		base = "."
	}
	parent, err := l.find(parentName)
	if err == nil {
		times := []unix.Timespec{{Sec: at[0], Nsec: at[1]}, {Sec: at[2], Nsec: at[3]}}
		err = unix.UtimesNanoAt(parent, base, times, unix.AT_SYMLINK_NOFOLLOW)
		_ = unix.Close(parent)
	}
	// A later entry may have replaced it, or a directory above it.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("set times of directory %s: %w", quote(name), err)
	}
	return nil
}

func (t *directoryTimes) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}
