package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"sandbox.internal/clients/go/lifecycle"
)

const (
	// maxResumedLog is how much of a log may have been read when its connection is cut, in bytes.
	// The engine forgets what is older than some 20 MB, and then a position means something else.
	maxResumedLog = 16 << 20
	// maxKeptLog and maxKeptLines are what the service keeps of an ended sandbox's log: its end.
	maxKeptLog   = 64 << 10
	maxKeptLines = 1000
)

// LogOptions choose a part of a log. Nil means all that is kept, without waiting for more.
type LogOptions struct {
	// Follow goes on with what is printed until the sandbox ends.
	Follow bool
	// Tail is with how many of the last lines to begin; nil means all that are kept.
	Tail *int
	// Since leaves out what was printed before.
	Since time.Time
}

// OpenLogs returns what the entrypoint printed, as a stream which is to be closed. It resumes when
// its connection is cut and when the service restarts: the log is read again from its beginning,
// and what was delivered is compared and left out. Reading ends with a [*StreamError] where the
// position is not known then: when it began with Tail or Since, when more than 16 MiB were read,
// when the engine has forgotten the beginning, and when the sandbox ended meanwhile and what the
// service keeps of its log, the last 64 KiB or 1000 lines, does not reach back far enough.
func (s *Sandbox) OpenLogs(ctx context.Context, o *LogOptions) (io.ReadCloser, error) {
	if o == nil {
		o = &LogOptions{}
	}
	l := &logReader{ctx: ctx, box: s, options: *o,
		retry: resumption{what: "log of sandbox " + s.id, limit: s.client.resumeLimit}}
	if err := l.connect(); err != nil {
		return nil, err
	}
	return l, nil
}

// logReader is a log on its way here.
type logReader struct {
	ctx     context.Context
	box     *Sandbox
	options LogOptions
	body    io.ReadCloser
	read    int64      // bytes that were delivered
	tail    logEnd     // the last of them
	skip    int64      // bytes that this connection brings again
	skipped logEnd     // the last of those that it has brought
	retry   resumption // a byte is progress
	ended   bool       // the sandbox has ended, and body is all that is missing
	broken  error      // why nothing more can be delivered
}

// logEnd is the end of what was written to it, at least maxKeptLog if that was so much.
type logEnd struct{ kept []byte }

// Write implements io.Writer.
func (e *logEnd) Write(p []byte) (int, error) {
	if e.kept = append(e.kept, p...); len(e.kept) > 4*maxKeptLog {
		e.kept = append(e.kept[:0], e.kept[len(e.kept)-maxKeptLog:]...)
	}
	return len(p), nil
}

// equals compares the ends of two logs of which as much was read.
func (e *logEnd) equals(other *logEnd) bool {
	n := min(len(e.kept), len(other.kept))
	return bytes.Equal(e.kept[len(e.kept)-n:], other.kept[len(other.kept)-n:])
}

// connect requests the log from its beginning.
func (l *logReader) connect() error {
	params := &lifecycle.GetLogsParams{Tail: l.options.Tail, Follow: optional(l.options.Follow)}
	if !l.options.Since.IsZero() {
		params.Since = &l.options.Since
	}
	response, err := l.box.client.send(l.ctx, repeatable,
		func(ctx context.Context) (*http.Response, error) {
			return l.box.client.service.GetLogs(ctx, l.box.id, params)
		})
	if err != nil {
		return err
	}
	l.body, l.skip, l.skipped = response.Body, l.read, logEnd{}
	return nil
}

// Read implements io.Reader.
func (l *logReader) Read(p []byte) (int, error) {
	for l.broken == nil {
		if l.skip > 0 {
			n, err := io.CopyN(&l.skipped, l.body, l.skip)
			l.skip -= n
			if err != nil {
				l.broken = l.again(err)
				continue
			}
			if !l.skipped.equals(&l.tail) {
				l.broken = l.lost(nil)
				continue
			}
			l.skipped = logEnd{}
		}
		n, err := l.body.Read(p)
		if n > 0 {
			l.read += int64(n)
			l.retry.progressed()
			_, _ = l.tail.Write(p[:n])
			return n, nil
		}
		if err != nil {
			l.broken = l.again(err)
		}
	}
	return 0, l.broken
}

// again connects once more after the end of a connection, or returns the end of the log.
func (l *logReader) again(failure error) error {
	switch {
	case l.ctx.Err() != nil:
		return context.Cause(l.ctx)
	case errors.Is(failure, io.EOF) && !l.options.Follow && l.skip > 0:
		return l.lost(nil) // there is less of it now than was delivered
	case errors.Is(failure, io.EOF) && (!l.options.Follow || l.ended):
		return io.EOF
	case errors.Is(failure, io.EOF):
		// What is in between may end the log, too.
		over, err := l.isOver()
		switch {
		case errors.Is(err, ErrNotFound):
			return io.EOF
		case err != nil && !mayRepeat(err, repeatable):
			return err
		case over:
			return l.finish()
		}
	}
	if !l.isWhole() || l.read > maxResumedLog {
		return l.lost(failure)
	}
	for {
		if err := l.retry.wait(l.ctx, failure); err != nil {
			return err
		}
		_ = l.body.Close()
		over := false
		err := l.connect()
		if err == nil {
			over, err = l.isOver()
		}
		switch {
		case err == nil && over: // what is kept of its log may begin elsewhere
			return l.finish()
		case err == nil:
			return nil
		case !mayRepeat(err, repeatable):
			return err
		}
		failure = err
	}
}

// isOver reports whether the sandbox has ended. One that is ending is waited for.
func (l *logReader) isOver() (bool, error) {
	info, err := l.box.refresh(l.ctx, waitStep)
	return err == nil && isOver(info.Status.State), err
}

// lost is a log that has no known position after a failure, which may be nil.
func (l *logReader) lost(failure error) error {
	return &StreamError{What: l.retry.what, Err: errors.Join(errNoPosition, failure)}
}

// finish reads what is missing of the log of an ended sandbox.
func (l *logReader) finish() error {
	lines := maxKeptLines // a cluster keeps all of it
	log, err := l.box.OpenLogs(l.ctx, &LogOptions{Tail: &lines})
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
		return io.EOF // nothing of it is kept
	}
	if err != nil {
		return err
	}
	l.skip = 0
	defer func() { _ = log.Close() }()
	kept, err := readEnd(log, maxKeptLog)
	if err != nil {
		return err
	}
	complete := len(kept) < maxKeptLog && bytes.Count(kept, []byte("\n")) < maxKeptLines-1
	switch {
	case complete && l.isWhole() && l.read <= int64(len(kept)) && bytes.HasSuffix(kept[:l.read], l.tail.kept):
		_ = l.body.Close()
		l.body, l.ended = io.NopCloser(bytes.NewReader(kept[l.read:])), true
		return nil
	case bytes.HasSuffix(l.tail.kept, kept):
		return io.EOF
	case !l.isWhole() && bytes.HasSuffix(kept, l.tail.kept):
		return io.EOF // as far as can be known of one that began with the last lines
	}
	return l.lost(nil)
}

// readEnd reads to the end and returns the last bytes, limit at most.
func readEnd(from io.Reader, limit int) ([]byte, error) {
	var end []byte
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if end = append(end, piece[:n]...); len(end) > limit {
			end = append(end[:0], end[len(end)-limit:]...)
		}
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// isWhole reports whether reading began at the beginning.
func (l *logReader) isWhole() bool { return l.options.Tail == nil && l.options.Since.IsZero() }

// errNoPosition is a log of which it is not known how much was read before a part of it.
var errNoPosition = errors.New("position in the log is not known")

// Close implements io.Closer.
func (l *logReader) Close() error { return l.body.Close() }
