package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"sandbox.internal/wire/sse"
)

// silence is how long a stream may bring no byte before its connection counts as lost. Streams that
// have nothing to say send a ping every ten seconds or sooner.
const silence = 45 * time.Second

// follower reads a stream of server-sent events and resumes it when its connection is cut.
type follower struct {
	client *Client
	what   string // in errors
	// open requests the events after the last one, which is "" for the beginning.
	open func(ctx context.Context, last string) (*http.Response, error)
	// answer is a stream that is open already, nil if none is.
	answer *http.Response
	// last is the id of the last event that was delivered.
	last string
	// numbered says that the ids of a stream count 1, 2, 3, so that a gap is a loss.
	numbered bool
	// endless says that a connection which ends without an error was cut, too: the stream has no
	// end of its own, or handle recognizes it.
	endless bool
	// once says that the stream cannot be resumed, because its events have no ids.
	once bool
	// onOpen is called for each connection; it may be nil.
	onOpen func()

	connected bool       // at least once
	retry     resumption // an event is progress
}

// follow calls handle with the data of each event until handle reports that it was the last one or
// returns an error, and until the stream ends by itself.
func (f *follower) follow(ctx context.Context,
	handle func(data []byte) (done bool, err error)) error {
	f.retry = resumption{what: f.what, limit: f.client.resumeLimit}
	for {
		if f.answer == nil {
			response, err := f.connect(ctx)
			if err != nil {
				return err
			}
			f.answer = response
		}
		if f.onOpen != nil {
			f.onOpen()
		}
		f.connected = true
		before := f.last
		done, delivered, err := f.read(ctx, handle)
		f.answer = nil
		switch {
		case done || err != nil && !isCut(err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && !f.endless:
			return nil
		case f.once:
			return &StreamError{What: f.what, Err: errors.Join(errNotResumable, err)}
		}
		if err == nil {
			err = io.EOF
		}
		if delivered || f.last != before {
			f.retry.progressed()
		}
		if err := f.retry.wait(ctx, err); err != nil {
			return err
		}
	}
}

// errNotResumable is a stream whose events have no ids.
var errNotResumable = errors.New("events have no ids to resume the stream with")

// connect opens the stream after the last event, for as long as that may be tried.
func (f *follower) connect(ctx context.Context) (*http.Response, error) {
	for {
		response, err := f.client.send(ctx, repeatable,
			func(ctx context.Context) (*http.Response, error) { return f.open(ctx, f.last) })
		if err == nil {
			err = checkStream(response)
		}
		switch {
		case err == nil:
			return response, nil
		case !f.connected || ctx.Err() != nil:
			return nil, err
		case !mayRepeat(err, repeatable), errors.Is(err, errNoStream):
			return nil, &StreamError{What: f.what, Err: err}
		}
		if err := f.retry.waitLong(ctx, err); err != nil {
			return nil, err
		}
	}
}

// checkStream refuses an answer that is no stream of events.
func checkStream(response *http.Response) error {
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if kind == "text/event-stream" {
		return nil
	}
	_ = response.Body.Close()
	return fmt.Errorf("%w: its type is %.40q", errNoStream, kind)
}

// errNoStream is an answer of another kind.
var errNoStream = errors.New("the answer is no stream of events")

// cutError is the failure of a connection, as opposed to that of what reads from it.
type cutError struct{ error }

func (e cutError) Unwrap() error { return e.error }

func isCut(err error) bool {
	var cut cutError
	return errors.As(err, &cut)
}

// errIdle ends a connection that has been idle for too long.
var errIdle = fmt.Errorf("no byte came within %v", silence)

// read delivers the events of one connection.
func (f *follower) read(ctx context.Context, handle func([]byte) (bool, error)) (done,
	delivered bool, err error) {
	body := f.answer.Body
	defer func() { _ = body.Close() }()
	// Closing the body ends a read that waits, whoever sent the request.
	var silent atomic.Bool
	watch := time.AfterFunc(silence, func() {
		silent.Store(true)
		_ = body.Close()
	})
	defer watch.Stop()
	defer context.AfterFunc(ctx, func() { _ = body.Close() })()
	events := sse.NewReader(&idleReader{body, watch}, f.client.maxAnswer)
	for {
		data, err := events.Next()
		if err != nil {
			if silent.Load() {
				err = errIdle
			}
			if errors.Is(err, io.EOF) {
				return false, delivered, nil
			}
			if errors.Is(err, sse.ErrTooLarge) { // and would be each time
				return false, delivered, &StreamError{What: f.what, Err: err}
			}
			return false, delivered, cutError{err}
		}
		if events.HasID() {
			repeated, err := f.advance(events.ID())
			if err != nil {
				return false, delivered, err
			}
			if repeated {
				continue
			}
		}
		delivered = true
		if done, err := handle(data); done || err != nil {
			if done {
				_, _ = events.Next() // the end, after which the connection can be used again
			}
			return true, delivered, err
		}
	}
}

// idleReader extends the deadline of an idle stream with every byte.
type idleReader struct {
	io.Reader
	watch *time.Timer
}

// Read implements io.Reader.
func (t *idleReader) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	if n > 0 {
		t.watch.Reset(silence)
	}
	return n, err
}

// advance moves on to an event, and reports whether it was delivered before.
func (f *follower) advance(id string) (repeated bool, err error) {
	last, lastErr := strconv.ParseInt(f.last, 10, 64)
	next, err := strconv.ParseInt(id, 10, 64)
	if err == nil && (lastErr == nil || f.last == "") {
		switch {
		case f.numbered && next > last+1:
			return false, fmt.Errorf("%s: event %d came after event %d", f.what, next, last)
		case f.numbered && next <= last:
			return true, nil
		}
	}
	f.last = id
	return false, nil
}

// decodeEvent reads the data of an event.
func decodeEvent[T any](data []byte) (T, error) {
	var event T
	if err := json.Unmarshal(data, &event); err != nil {
		return event, fmt.Errorf("an event is not what the contract says: %w", err)
	}
	return event, nil
}

// events yields the events of a stream that has no event for its end. skip leaves events out.
func events[T any](ctx context.Context, f *follower, skip func(T) bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		stopped := false
		err := f.follow(ctx, func(data []byte) (bool, error) {
			event, err := decodeEvent[T](data)
			if err != nil || skip(event) {
				return false, err
			}
			stopped = !yield(event, nil)
			if stopped {
				return false, errStopped
			}
			return false, nil
		})
		if err != nil && !stopped {
			var zero T
			yield(zero, err)
		}
	}
}

// errStopped ends a stream whose reader wants no more of it.
var errStopped = errors.New("stopped")
