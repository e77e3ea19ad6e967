package sandbox

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"sandbox.internal/gen/lifecycle"
)

// maxResumedLog is how much of a log may have been read when its connection is cut, in bytes. The
// engine forgets what is older than some 20 MB, and then a position means something else.
const maxResumedLog = 16 << 20

// LogOptions choose a part of a log. Nil means all that is kept, without waiting for more.
type LogOptions struct {
	// Follow goes on with what is printed until the sandbox ends.
	Follow bool
	// Tail is with how many of the last lines to begin; nil means all that are kept.
	Tail *int
	// Since leaves out what was printed before.
	Since time.Time
}

// Logs returns what the entrypoint printed, as a stream which is to be closed. One that is followed
// resumes when its connection is cut and when the service restarts, unless it began with Tail or
// Since, or more than 16 MiB were read: then the position is not known, and reading ends with a
// [*StreamError].
func (s *Sandbox) Logs(ctx context.Context, o *LogOptions) (io.ReadCloser, error) {
	if o == nil {
		o = &LogOptions{}
	}
	l := &logReader{ctx: ctx, box: s, options: *o}
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
	read    int64     // bytes that were delivered
	skip    int64     // bytes of this connection that were delivered before
	since   time.Time // of the first failure without a byte since
	ended   bool      // the sandbox had ended when this connection was made
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
	l.body, l.skip = response.Body, l.read
	return nil
}

// Read implements io.Reader.
func (l *logReader) Read(p []byte) (int, error) {
	for {
		if l.skip > 0 {
			n, err := io.CopyN(io.Discard, l.body, l.skip)
			l.skip -= n
			if err != nil {
				if err := l.again(err); err != nil {
					return 0, err
				}
				continue
			}
		}
		n, err := l.body.Read(p)
		if n > 0 {
			l.read, l.since = l.read+int64(n), time.Time{}
			return n, nil
		}
		if err == nil {
			continue
		}
		if err := l.again(err); err != nil {
			return 0, err
		}
	}
}

// again connects once more after the end of a connection, or returns the end of the log.
func (l *logReader) again(failure error) error {
	switch {
	case l.ctx.Err() != nil:
		return context.Cause(l.ctx)
	case errors.Is(failure, io.EOF) && (!l.options.Follow || l.ended):
		return io.EOF
	case errors.Is(failure, io.EOF):
		// The service ends the log when it stops, too.
		info, err := l.box.Refresh(l.ctx)
		switch {
		case errors.Is(err, ErrNotFound):
			return io.EOF
		case err != nil && !mayRepeat(err, repeatable):
			return err
		case err == nil && (isOver(info.Status.State) || info.Status.State == Stopping):
			l.ended = true
			return io.EOF
		}
	}
	what := "log of sandbox " + l.box.id
	if l.options.Follow && (l.options.Tail != nil || !l.options.Since.IsZero()) {
		return &StreamError{What: what, Err: errors.Join(errNoPosition, failure)}
	}
	if l.read > maxResumedLog {
		return &StreamError{What: what, Err: errors.Join(errNoPosition, failure)}
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if l.since.IsZero() {
			l.since = time.Now()
		} else if time.Since(l.since) > l.box.client.resumeLimit {
			return &StreamError{What: what, Err: failure}
		} else if err := sleep(l.ctx, pause); err != nil {
			return err
		}
		_ = l.body.Close()
		err := l.connect()
		if err == nil {
			return nil
		}
		if !mayRepeat(err, repeatable) {
			return err
		}
		failure = err
	}
}

// errNoPosition is a log of which it is not known how much was read before a part of it.
var errNoPosition = errors.New("its position is not known")

// Close implements io.Closer.
func (l *logReader) Close() error { return l.body.Close() }
