package oci

import (
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"sandbox.internal/runtime/oci/keeper"
)

// logFiles are the two files of a log at one moment, as one.
type logFiles struct {
	old, current *os.File // nil when there is none
	oldSize      int64
	currentSize  int64
}

// openLogFiles opens both files as they are between two changes of the keeper, which renames the current one to the old one.
func openLogFiles(at containerFolder) (*logFiles, error) {
	for {
		l := &logFiles{}
		var err error
		if l.old, err = openIfThere(at.oldLog()); err != nil {
			return nil, err
		}
		if l.current, err = openIfThere(at.log()); err != nil {
			l.close()
			return nil, err
		}
		same, err := isAt(l.old, at.oldLog())
		if err == nil && same {
			err = l.measure()
			if err == nil {
				return l, nil
			}
		}
		l.close()
		if err != nil {
			return nil, err
		}
	}
}

func openIfThere(path string) (*os.File, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return file, err
}

// isAt reports whether the path is still that of the open file, or of none when file is nil.
func isAt(file *os.File, path string) (bool, error) {
	there, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return file == nil, nil
	}
	if err != nil || file == nil {
		return false, err
	}
	opened, err := file.Stat()
	return err == nil && os.SameFile(there, opened), err
}

func (l *logFiles) measure() error {
	for file, size := range map[*os.File]*int64{l.old: &l.oldSize, l.current: &l.currentSize} {
		if file == nil {
			continue
		}
		info, err := file.Stat()
		if err != nil {
			return err
		}
		*size = info.Size()
	}
	return nil
}

func (l *logFiles) newest() *os.File {
	if l.current != nil {
		return l.current
	}
	return l.old
}

func (l *logFiles) size() int64 { return l.oldSize + l.currentSize }

func (l *logFiles) close() {
	for _, file := range []*os.File{l.old, l.current} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// ReadAt reads both files as one, up to the sizes that they were opened with.
func (l *logFiles) ReadAt(p []byte, offset int64) (n int, err error) {
	if l.old != nil && offset < l.oldSize {
		n, err = l.old.ReadAt(p[:min(int64(len(p)), l.oldSize-offset)], offset)
		if err != nil {
			return n, err
		}
	}
	if n == len(p) {
		return n, nil
	}
	offset += int64(n) - l.oldSize
	if l.current == nil || offset >= l.currentSize {
		return n, io.EOF
	}
	more, err := l.current.ReadAt(p[n:][:min(int64(len(p)-n), l.currentSize-offset)], offset)
	if n += more; err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// lastLines returns where the last lines begin, but not before first. A last line without newline counts.
func (l *logFiles) lastLines(lines int, first int64) (int64, error) {
	end := l.size()
	if lines == 0 {
		return end, nil
	}
	block := make([]byte, 32<<10)
	for at := end; at > first; {
		size := min(int64(len(block)), at-first)
		at -= size
		if _, err := l.ReadAt(block[:size], at); err != nil && err != io.EOF {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if block[i] != '\n' || at+i+1 == end { // the newline at the very end ends the last line
				continue
			}
			if lines--; lines == 0 {
				return at + i + 1, nil
			}
		}
	}
	return first, nil
}

// since returns where what was written since a time begins.
func (l *logFiles) since(when time.Time) (int64, error) {
	if when.IsZero() {
		return 0, nil
	}
	begin := int64(0)
	for _, part := range []struct {
		file *os.File
		size int64
	}{{l.old, l.oldSize}, {l.current, l.currentSize}} {
		if part.file == nil {
			continue
		}
		stamps, err := keeper.ReadStamps(part.file.Name())
		if err != nil {
			return 0, err
		}
		// Between two stamps that are that close, everything has the time of the first.
		i := slices.IndexFunc(stamps, func(s keeper.Stamp) bool { return !s.At.Before(when.Add(-keeper.StampPause)) })
		info, err := part.file.Stat()
		if err != nil {
			return 0, err
		}
		switch {
		case i >= 0:
			return begin + min(stamps[i].Offset, part.size), nil
		case info.ModTime().Before(when):
			begin += part.size
		case len(stamps) > 0: // a file has room for so many
			return begin + min(stamps[len(stamps)-1].Offset, part.size), nil
		default:
			return begin, nil
		}
	}
	return begin, nil
}

func sameFile(a, b *os.File) bool {
	if a == nil || b == nil {
		return a == b
	}
	first, err := a.Stat()
	if err != nil {
		return false
	}
	second, err := b.Stat()
	return err == nil && os.SameFile(first, second)
}
