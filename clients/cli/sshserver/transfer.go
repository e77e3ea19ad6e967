package sshserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/pkg/sftp"

	sandbox "sandbox.internal/clients/go"
)

// SFTP reads and writes pieces of files in any order, several at a time, and the daemon has files
// as streams.

const (
	// window is how many of the last bytes that have arrived of a file are kept at most.
	window = 4 << 20
	// skipped is how far ahead of them a piece may be without another request to the daemon.
	skipped = 1 << 20
	// overtaken is how far ahead of others a piece that is requested later may arrive.
	overtaken = 256 << 10
	// maxLoad is the largest file that can be changed in part.
	maxLoad = 1 << 30
)

// reader is a file that is read: a stream, of which the last bytes are kept, because requests for
// consecutive pieces overtake one another. A piece that is elsewhere begins another stream.
type reader struct {
	open func(offset int64) (io.ReadCloser, error)

	mu      sync.Mutex
	content io.ReadCloser // nil where there is none
	start   int64         // of the bytes that are kept
	kept    []byte
	ended   bool // what is kept ends with the file
	piece   []byte
}

// begin opens the file.
func (r *reader) begin() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seek(0)
}

// seek begins another stream.
func (r *reader) seek(offset int64) error {
	r.stop()
	r.start, r.kept, r.ended = offset, r.kept[:0], false
	content, err := r.open(offset)
	var refused *sandbox.Error
	if errors.As(err, &refused) && refused.Status == rangeNotSatisfiable {
		r.ended = true // the file is shorter
		return nil
	}
	r.content = content
	return err
}

// rangeNotSatisfiable is the status of a range that begins behind the end of a file.
const rangeNotSatisfiable = 416

func (r *reader) stop() {
	if r.content != nil {
		_ = r.content.Close()
		r.content = nil
	}
}

func (r *reader) end() int64 { return r.start + int64(len(r.kept)) }

// ReadAt implements [io.ReaderAt].
func (r *reader) ReadAt(p []byte, offset int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if offset < 0 || len(p) > window/2 {
		return 0, errors.New("read: the range is malformed")
	}
	behind := offset < r.start || offset > r.end()+skipped && !r.ended
	if behind || r.content == nil && !r.ended {
		if err := r.seek(max(0, offset-overtaken)); err != nil {
			return 0, err
		}
	}
	for r.end() < offset+int64(len(p)) && !r.ended {
		if err := r.receive(); err != nil {
			r.stop()
			return 0, statusOf(err)
		}
	}
	if offset >= r.end() {
		return 0, io.EOF
	}
	n := copy(p, r.kept[offset-r.start:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// receive takes the next bytes of the stream, and drops the oldest when they are too many.
func (r *reader) receive() error {
	if r.piece == nil {
		r.piece = make([]byte, 64<<10)
	}
	n, err := r.content.Read(r.piece)
	if len(r.kept)+n > window {
		half := len(r.kept) / 2
		r.kept = append(r.kept[:0], r.kept[half:]...)
		r.start += int64(half)
	}
	r.kept = append(r.kept, r.piece[:n]...)
	if err == io.EOF { //nolint:errorlint // another error may have the end of a connection as its cause
		r.stop()
		r.ended, err = true, nil
	}
	return err
}

// Close implements [io.Closer].
func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop()
	r.kept, r.ended = nil, false
	return nil
}

// spool is a temporary file of this machine. Where that is possible it has no name any more.
type spool struct{ *os.File }

func newSpool() (spool, error) {
	file, err := os.CreateTemp("", "sandbox-sftp-")
	if err != nil {
		return spool{}, err
	}
	_ = os.Remove(file.Name()) // not on Windows before it is closed
	return spool{file}, nil
}

// Close implements [io.Closer].
func (s spool) Close() error {
	err := s.File.Close()
	_ = os.Remove(s.Name())
	return err
}

// writer is a file that is written. The content is in a spool, and at the file's path once all of
// it is there: Close fails when that cannot be.
type writer struct {
	spool
	files *files
	path  string

	mu       sync.Mutex
	mode     os.FileMode          // that the file is going to have, for clients that look
	options  sandbox.WriteOptions // to write it with
	modified *uint32              // when it was changed, in seconds since 1970; nil means now
	cut      bool                 // the connection has ended before the client closed the file
}

func newWriter(f *files, path string) (*writer, error) {
	file, err := newSpool()
	if err != nil {
		return nil, err
	}
	return &writer{spool: file, files: f, path: path}, nil
}

// load begins with what the file has.
func (w *writer) load(size int64) error {
	tooLarge := fmt.Errorf("%s: is larger than the %d bytes that can be changed in part: write all of it", w.path, maxLoad)
	if size > maxLoad {
		return tooLarge
	}
	content, err := w.files.box.Files.Open(w.files.ctx, w.path, nil)
	if err != nil {
		return statusOf(err)
	}
	n, err := io.Copy(w.File, io.LimitReader(content, maxLoad+1))
	if err == nil && n > maxLoad {
		err = tooLarge
	}
	return errors.Join(err, content.Close())
}

// info is what the file is going to be.
func (w *writer) info() (sftp.ListerAt, error) {
	stat, err := w.Stat()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return plain{w.path, stat, w.mode}, nil
}

// setAttributes keeps what the file is to have.
func (w *writer) setAttributes(permission sandbox.Permission, flags sftp.FileAttrFlags, attributes *sftp.FileStat) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if permission.Mode != "" {
		w.options.Mode, w.mode = permission.Mode, os.FileMode(attributes.Mode&0o777)
	}
	if permission.Owner != "" {
		w.options.Owner, w.options.Group = permission.Owner, permission.Group
	}
	if flags.Acmodtime {
		w.modified = &attributes.Mtime
	}
	if flags.Size {
		return w.Truncate(int64(attributes.Size)) //nolint:gosec // a negative size is refused
	}
	return nil
}

// TransferError implements [sftp.TransferError].
func (w *writer) TransferError(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

// Close implements [io.Closer].
func (w *writer) Close() error {
	defer func() { _ = w.spool.Close() }()
	w.files.mu.Lock()
	if w.files.writers[w.path] == w {
		delete(w.files.writers, w.path)
	}
	w.files.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return nil
	}
	if _, err := w.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := w.files.box.Files.WriteFrom(w.files.ctx, w.path, w.File, &w.options); err != nil {
		return statusOf(err)
	}
	if w.modified != nil {
		return w.files.setTime(w.path, *w.modified)
	}
	return nil
}

// plain is a list of one file that is being written.
type plain struct {
	path string
	os.FileInfo
	mode os.FileMode
}

// ListAt implements [sftp.ListerAt].
func (p plain) ListAt(to []os.FileInfo, _ int64) (int, error) {
	to[0] = p
	return 1, nil
}

// Name implements [fs.FileInfo].
func (p plain) Name() string { return p.path }

// Mode implements [fs.FileInfo].
func (p plain) Mode() os.FileMode { return p.mode }

// Sys implements [fs.FileInfo].
func (p plain) Sys() any { return nil }
