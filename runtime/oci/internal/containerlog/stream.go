// Package containerlog reads the logs of containers, which the keeper writes, and follows them.
package containerlog

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
)

// Logs reads the logs of containers. Use [New].
type Logs struct {
	changes *changes
	closing context.Context //nolint:containedctx // ends the reads of logs that are followed
}

// New returns the Logs of an Engine, which is closed when closing ends. The caller calls Close.
func New(closing context.Context, log zerolog.Logger) *Logs {
	return &Logs{changes: newChanges(log), closing: closing}
}

// Close releases what reports that logs have grown. No log is followed any more.
func (l *Logs) Close() error { return l.changes.stop() }

// Tail returns the last lines of a container's log, at most [engine.MaxLogsBytes]. The beginning is
// cut off; bytes that are not UTF-8 are replaced. The error is [engine.ErrNotFound] when the
// container was removed.
func (l *Logs) Tail(c *containers.Container, lines int) (string, error) {
	log, err := openLogFiles(c.Directory)
	if err != nil {
		return "", gone(err)
	}
	defer log.close()
	size := log.size()
	begin, err := log.lastLines(lines, max(0, size-engine.MaxLogsBytes))
	if err != nil {
		return "", err
	}
	text := make([]byte, size-begin)
	if _, err := log.ReadAt(text, begin); err != nil && err != io.EOF {
		return "", err
	}
	return strings.ToValidUTF8(string(text), "?"), nil // which is never longer
}

// Open opens the log of a container. ctx bounds its reads. Since is exact to a tenth of a second:
// what was written up to that much earlier may be there, too. The error is [engine.ErrNotFound]
// when the container was removed.
func (l *Logs) Open(ctx context.Context, c *containers.Container, options engine.LogOptions) (io.ReadCloser, error) {
	stream := &logStream{ctx: ctx, closing: l.closing, container: c, closed: make(chan struct{}), release: func() {}}
	if options.Follow { // before the end of the log is looked for, so that nothing is missed
		var err error
		if stream.changed, stream.release, err = l.changes.watch(string(c.Directory)); err != nil {
			return nil, gone(err)
		}
	}
	if err := stream.open(options); err != nil {
		stream.release()
		return nil, gone(err)
	}
	return stream, nil
}

// gone says that a directory that is missing is that of a container that was removed.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return engine.ErrNotFound
	}
	return err
}

// logStream is an open log.
type logStream struct {
	ctx       context.Context //nolint:containedctx // bounds the reads, see [engine.Containers].OpenLog
	closing   context.Context //nolint:containedctx // ends when the Engine is closed
	container *containers.Container
	changed   <-chan struct{} // nil when the log is not followed
	release   func()
	closeOnce sync.Once
	closed    chan struct{}

	mu     sync.Mutex // guards the fields below; a read holds it while it does not wait
	files  *logFiles  // nil after Close
	offset int64
}

func (s *logStream) open(options engine.LogOptions) error {
	files, err := openLogFiles(s.container.Directory)
	if err != nil {
		return err
	}
	begin, err := files.since(options.Since)
	if err == nil && options.Tail >= 0 {
		s.offset, err = files.lastLines(options.Tail, begin)
	} else {
		s.offset = begin
	}
	if err != nil {
		files.close()
		return err
	}
	s.files = files
	return nil
}

// Read implements [io.Reader].
func (s *logStream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for ended := s.changed == nil; ; {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := s.readMore(p)
		if n > 0 || err != nil {
			return n, err
		}
		if ended {
			return 0, io.EOF
		}
		select {
		case <-s.changed:
		case <-s.container.Ended():
			ended = true // what was written before is read first
		case <-s.container.Gone():
			ended = true
		case <-s.closed:
			return 0, os.ErrClosed
		case <-s.closing.Done():
			return 0, background.ClosedError("read a log")
		case <-s.ctx.Done():
		}
	}
}

// readMore reads what there is. Nothing and no error means the end of it for now.
func (s *logStream) readMore(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		return 0, os.ErrClosed
	}
	for {
		n, err := s.files.ReadAt(p, s.offset)
		s.offset += int64(n)
		switch {
		case n > 0:
			return n, nil
		case err != io.EOF:
			return 0, err
		case s.changed == nil:
			return 0, nil
		}
		if more, err := s.next(); err != nil || !more {
			return 0, err
		}
	}
}

// next looks for what was written since the files were measured or opened, and reports whether
// there may be something.
func (s *logStream) next() (bool, error) {
	before := s.files.size()
	if err := s.files.measure(); err != nil {
		return false, err
	}
	if s.files.size() > before {
		return true, nil
	}
	now, err := openLogFiles(s.container.Directory)
	if errors.Is(err, os.ErrNotExist) { // the container was removed; its end is reported
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The newest file that was read, and how much was read before it.
	last, earlier := s.files.current, s.files.oldSize
	if last == nil {
		last, earlier = s.files.old, 0
	}
	switch {
	case now.newest() == nil, sameFile(now.newest(), last): // nothing is new
		// If something was written between the two looks, a change is reported, or the container's
		// end.
		now.close()
		return false, nil
	case last != nil && sameFile(now.old, last):
		s.offset -= earlier
	default: // the first files there are, or two changes since
		// What was written to the last file since it was measured comes first; it is complete now.
		err := s.files.measure()
		if err == nil && s.files.size() == before {
			err = s.files.checkNext(now)
		}
		if err != nil || s.files.size() > before {
			now.close()
			return true, err
		}
		s.offset = 0
	}
	s.files.close()
	s.files = now
	return true, nil
}

// Close implements [io.Closer]. It may be called more than once, and while a Read waits.
func (s *logStream) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		s.release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files.close()
		s.files = nil
	})
	return nil
}
