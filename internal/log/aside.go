package log

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
)

// asideLimit is how many bytes of log there are in a file of [Aside]; there are at most two.
const asideLimit = 1 << 20

// aside is a file for a log that has no place of its own. It is made for the first message.
type aside struct {
	path     string
	fallback io.Writer
	limit    int64

	mu   sync.Mutex
	file *os.File // nil before the first message, and where there can be none
	size int64
}

// Aside returns a writer to a file that only the program's user may read, of at most 1 MiB. When
// the file is full, it is renamed with the suffix .old and a new one is begun. Where no such file
// can be made, or something else is at the path, all goes to fallback.
func Aside(path string, fallback io.Writer) io.WriteCloser {
	return &aside{path: path, fallback: fallback, limit: asideLimit}
}

// Write implements io.Writer.
func (a *aside) Write(line []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil {
		a.open()
	}
	if a.file != nil && a.size > 0 && a.size+int64(len(line)) > a.limit {
		a.close()
		if os.Rename(a.path, a.path+".old") == nil {
			a.open()
		}
	}
	if a.file == nil {
		return a.fallback.Write(line)
	}
	n, err := a.file.Write(line)
	a.size += int64(n)
	return n, err
}

// open opens the file, unless the sandbox's processes have put something else in its place: a link
// to another file, for example.
func (a *aside) open() {
	file, err := os.OpenFile(a.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return
	}
	var found syscall.Stat_t
	err = syscall.Fstat(int(file.Fd()), &found)
	if err != nil || found.Mode&syscall.S_IFMT != syscall.S_IFREG || found.Nlink != 1 || int(found.Uid) != os.Geteuid() {
		file.Close() // nothing was written to it
		return
	}
	a.file, a.size = file, found.Size
}

func (a *aside) close() error {
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// Close implements io.Closer.
func (a *aside) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
