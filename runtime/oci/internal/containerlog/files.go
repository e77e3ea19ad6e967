package containerlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/keeper"
)

// logFiles are the two files of a log at one moment, as one.
type logFiles struct {
	old, current *os.File // nil when there is none
	oldSize      int64
	currentSize  int64
	begin        int64 // where the first of them begins in all that the container has printed; negative when that is not known
}

// openLogFiles opens both files as they are between two changes of the keeper, which renames the
// current one to the old one.
func openLogFiles(at layout.Container) (*logFiles, error) {
	for {
		l := &logFiles{}
		var err error
		if l.old, err = openIfThere(at.OldLog()); err != nil {
			return nil, err
		}
		if l.current, err = openIfThere(at.Log()); err == nil && l.current == nil {
			// Nothing was printed, unless the container is gone: then its log is not empty, but
			// elsewhere.
			_, err = os.Stat(string(at))
		}
		if err != nil {
			l.close()
			return nil, err
		}
		same, err := isAt(l.old, at.OldLog())
		if err == nil && same {
			err = l.measure()
			if err == nil {
				l.findBegin()
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

// findBegin sets begin. Files of an earlier release do not have it recorded.
func (l *logFiles) findBegin() {
	if l.old == nil {
		return // nothing was removed yet
	}
	var known bool
	if l.begin, known = keeper.LogBegin(l.old); known {
		return
	}
	l.begin = -1
	if l.current != nil {
		if begin, known := keeper.LogBegin(l.current); known {
			l.begin = begin - l.oldSize
		}
	}
}

// checkNext returns an error unless the next files begin where these end.
func (l *logFiles) checkNext(next *logFiles) error {
	if l.begin < 0 || next.begin < 0 {
		return errors.New("the log went on faster than it was read, and an earlier release made its files: some of it may no longer be kept")
	}
	if missing := next.begin - l.begin - l.size(); missing != 0 {
		return fmt.Errorf("the log went on faster than it was read: %d bytes of the log are no longer kept", missing)
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

// lastLines returns where the last lines begin, but not before first. A last line without newline
// counts.
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
	all, err := l.stamps()
	if err != nil {
		return 0, err
	}
	begin := int64(0)
	for _, part := range []struct {
		file *os.File
		size int64
	}{{l.old, l.oldSize}, {l.current, l.currentSize}} {
		if part.file == nil {
			continue
		}
		stamps := slices.DeleteFunc(slices.Clone(all), func(s keeper.Stamp) bool {
			return s.Offset < l.begin+begin || s.Offset >= l.begin+begin+part.size
		})
		// Between two stamps that are that close, everything has the time of the first.
		i := slices.IndexFunc(stamps, func(s keeper.Stamp) bool { return !s.At.Before(when.Add(-keeper.StampPause)) })
		info, err := part.file.Stat()
		if err != nil {
			return 0, err
		}
		switch {
		case i == 0: // what is before has no stamp
			return begin, nil
		case i > 0:
			return stamps[i].Offset - l.begin, nil
		case info.ModTime().Before(when):
			begin += part.size
		case len(stamps) > 0: // a file has room for so many
			return stamps[len(stamps)-1].Offset - l.begin, nil
		default:
			return begin, nil
		}
	}
	return begin, nil
}

// stamps returns those of both files, in order; none when it is not known what they are about. A
// keeper that was killed while it changed the files has left them beside the wrong one.
func (l *logFiles) stamps() ([]keeper.Stamp, error) {
	var all []keeper.Stamp
	for _, file := range []*os.File{l.old, l.current} {
		if file == nil || l.begin < 0 {
			continue
		}
		stamps, err := keeper.ReadStamps(file.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, stamps...)
	}
	return all, nil
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
