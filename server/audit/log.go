package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/internal/flock"
)

// syncDelay is how long a line without a waiting caller may be in memory only.
const syncDelay = time.Second

var (
	errClosed = errors.New("audit log: closed")
	errInUse  = errors.New("is in use by another process")
)

// Log appends to one file. Methods may be called concurrently; lines are in the order of the calls.
type Log struct {
	path   string
	logger zerolog.Logger
	clock  func() time.Time

	mu     sync.Mutex
	file   *os.File
	size   int64 // of the file: what is behind it is rubbish
	end    link
	failed error         // why nothing can be appended any more, until Reopen
	wrote  uint64        // how many lines were written since the start
	synced uint64        // how many of them are durable
	settle chan struct{} // closed and replaced when synced or failed changes
	wanted bool          // a caller waits for a line to be durable
	closed bool

	syncing sync.Mutex // held while the file is synced or exchanged; taken before mu
	pending chan struct{}
	stopped chan struct{}
}

// Open opens the log and creates it, and the directory that it is in, if need be; only the owner
// can read it. An incomplete last line of a crash is cut off, and a line says so. It fails when the
// log is broken in any other way, and when another process has it open.
func Open(path string, logger zerolog.Logger, clock func() time.Time) (*Log, error) {
	l := &Log{
		path: path, logger: logger.With().Str("component", "audit").Logger(), clock: clock,
		settle: make(chan struct{}), pending: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("audit log: create directory: %w", err)
	}
	file, err := l.attach()
	if err != nil {
		return nil, fmt.Errorf("audit log %s: %w", path, err)
	}
	if err := l.takeUp(file); err != nil {
		return nil, errors.Join(fmt.Errorf("audit log %s: %w", path, err), file.Close())
	}
	go l.syncPeriodically()
	return l, nil
}

// attach opens the file, or makes it, and locks it.
func (l *Log) attach() (*os.File, error) {
	file, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Exclusive(file); err != nil {
		if errors.Is(err, flock.ErrHeld) {
			err = errInUse
		}
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// takeUp goes on behind the last line of a file that was written before, or begins a new chain. The
// caller has the log to itself. A log that failed stays so when it cannot be taken up.
func (l *Log) takeUp(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	begin := line{Kind: KindAnchor}
	size, end := int64(0), link{0, origin}
	if info.Size() > 0 {
		report, torn, err := inspect(file, info.Size())
		if err != nil {
			return err
		}
		if report.Lines > 0 {
			begin.Kind = KindStarted
			size, end = report.size, link{report.Last, report.Hash}
		}
		if torn.TornBytes > 0 {
			l.logger.Warn().Int64("line", report.Lines+1).Int64("bytes",
				torn.TornBytes).Msg("the last line of the audit log was incomplete and is cut off")
			if err := file.Truncate(size); err != nil {
				return fmt.Errorf("cut off an incomplete line: %w", err)
			}
			if report.Lines > 0 {
				begin.Kind = KindRepaired
			}
			begin.Torn, begin.TornBytes = torn.Torn, torn.TornBytes
		}
	}
	failed := l.failed
	l.file, l.size, l.end, l.failed = file, size, end, nil
	if err = l.append(begin); err == nil {
		err = l.secure(file)
	}
	if err != nil {
		l.failed = failed
	}
	return err
}

// secure makes the file durable, its name included.
func (l *Log) secure(file *os.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(l.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// append writes a line. The caller holds mu, or has the log to itself.
func (l *Log) append(next line) error {
	switch {
	case l.closed:
		return errClosed
	case l.failed != nil:
		return l.failed
	}
	next.Time = l.clock().UTC()
	text, end, err := l.end.seal(next)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	if _, err := l.file.Write(text); err != nil {
		// A part of the line may be there, and the next one would be unreadable behind it.
		if cut := l.file.Truncate(l.size); cut != nil {
			l.failed = fmt.Errorf(
				"audit log: %s ends in an incomplete line: %w; it is taken up again at SIGHUP",
				l.path, errors.Join(err, cut))
			l.announce() // the lines before are not synced any more
		}
		return fmt.Errorf("audit log: %w", err)
	}
	l.size += int64(len(text))
	l.end = end
	l.wrote++
	return nil
}

// Intend writes the intention of a request. When it returns without an error the line survives the
// end of this process; once durable has returned nil it survives a loss of power too. Seq is the
// number that the outcome must name.
func (l *Log) Intend(entry Entry) (seq uint64, durable func() error, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.append(line{Kind: KindIntent, Entry: entry}); err != nil {
		return 0, nil, err
	}
	ticket := l.wrote
	l.wanted = true
	l.requestSync()
	return l.end.seq, func() error { return l.await(ticket) }, nil
}

// Conclude writes how a request ended: the outcome of the intention that the entry names, or that
// it was refused if it names none. It does not wait for the disk.
func (l *Log) Conclude(entry Entry) error {
	kind := KindOutcome
	if entry.Intent == 0 {
		kind = KindRefused
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.append(line{Kind: kind, Entry: entry})
}

// Reopen begins a new file where the path names another one by now, or none: the operator has
// renamed the old one. The new file's first line continues the chain. A log that failed is taken up
// again. When Reopen fails, the old file stays in use.
func (l *Log) Reopen() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	same, err := l.named()
	switch {
	case err != nil:
		return fmt.Errorf("audit log %s: %w", l.path, err)
	case same && l.failed == nil:
		l.logger.Info().Msg(
			"the audit log is the same file as before: rename it first to begin a new one")
		return nil
	case same:
		err = l.takeUp(l.file)
	default:
		err = l.rotate()
	}
	if err != nil {
		return fmt.Errorf("audit log %s: %w", l.path, err)
	}
	l.markSynced()
	l.logger.Info().Str("continues", l.end.hash).Msg("the audit log was reopened")
	return nil
}

// named reports whether the path still names the open file.
func (l *Log) named() (bool, error) {
	ours, err := l.file.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ours, there), err
}

// rotate leaves the old file as it is and begins a new one. The caller holds both locks.
func (l *Log) rotate() error {
	if l.failed == nil {
		if err := l.file.Sync(); err != nil {
			return err
		}
	}
	next, err := l.attach()
	if err != nil {
		return err
	}
	old, size, end, failed := l.file, l.size, l.end, l.failed
	info, err := next.Stat()
	switch {
	case err != nil:
	case info.Size() > 0:
		err = errors.New("there is another file already, and it is not empty")
	default:
		l.file, l.size, l.failed = next, 0, nil
		if err = l.append(line{Kind: KindAnchor}); err == nil {
			err = l.secure(next)
		}
		if err != nil {
			// or the next attempt would find a file that is not empty
			err = errors.Join(err, next.Truncate(0))
		}
	}
	if err != nil {
		l.file, l.size, l.end, l.failed = old, size, end, failed
		return errors.Join(err, next.Close())
	}
	return old.Close()
}

// Close makes everything durable and closes the file. A second call does nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.requestSync()
	l.mu.Unlock()
	<-l.stopped
	return errors.Join(l.file.Sync(), l.file.Close())
}
