package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// bodyTime is how long a body has to arrive, and an upload to go on. With the time
	// for unread output it stays below half a minute.
	bodyTime = 25 * time.Second
	// unreadTime is how long net/http may read what a handler has left of a body, which
	// it does before it uses the connection again.
	unreadTime = 4 * time.Second
)

// withDeadlines gives the body of every request its time, for net/http has no limit of
// its own that would permit an upload to take longer than a small body may.
func withDeadlines(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		body := &timedBody{ReadCloser: r.Body, controller: http.NewResponseController(w),
			limit: limit}
		body.extend()
		defer body.finish()
		// net/http looks for the body that it has made in its own request, which therefore stays
		// as it is: else a body that the client announces with Expect is awaited after a refusal.
		timed := *r
		timed.Body = body
		next.ServeHTTP(w, &timed)
	})
}

// timedBody is a request body with a deadline. As a whole it has the limit, unless a
// pace was set that says otherwise.
type timedBody struct {
	io.ReadCloser
	controller *http.ResponseController
	limit      time.Duration

	mu   sync.Mutex
	pace pace
	over bool // nothing more is read, or the handler has returned
}

// pace says what the deadline of a body is about.
type pace int

const (
	paceWhole    pace = iota // all of the body
	pacePart                 // each part of it
	paceNoLimits             // nothing
)

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.pace == pacePart && !b.over {
		b.extend()
	}
	b.mu.Unlock()
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if errors.Is(err, io.EOF) && !b.over {
			// From here on net/http reads to notice when the client leaves, for as long as
			// the handler likes.
			b.set(time.Time{})
		}
		b.over = true
	}
	return n, err
}

// finish leaves a little time for what was not read. A reader that goes on in another
// goroutine must not touch the connection's deadline any more.
func (b *timedBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.set(time.Now().Add(min(b.limit, unreadTime)))
	}
	b.over = true
}

// extend and set ignore errors: a writer without deadlines is a test's.
func (b *timedBody) extend() { b.set(time.Now().Add(b.limit)) }

func (b *timedBody) set(deadline time.Time) { _ = b.controller.SetReadDeadline(deadline) }

func setPace(r *http.Request, pace pace) {
	body, ok := r.Body.(*timedBody)
	if !ok {
		return
	}
	body.mu.Lock()
	defer body.mu.Unlock()
	if body.over {
		return
	}
	body.pace = pace
	if pace == paceNoLimits {
		body.set(time.Time{})
	}
}

// WithoutDeadline removes the deadline of a request's body. It is for
// handlers that have checked who sends it and pass it on to another server, where it
// may be one half of a conversation. Call it before anything else wraps the body.
func WithoutDeadline(r *http.Request) { setPace(r, paceNoLimits) }

// SetBodyTime sets how long each part of a body that is not JSON may take to arrive. It is for handlers
// that have checked who sends it.
func SetBodyTime(ctx context.Context, limit time.Duration) {
	state := stateOf(ctx)
	if state == nil || state.body == nil {
		return
	}
	body, ok := state.body.ReadCloser.(*timedBody)
	if !ok {
		return
	}
	body.mu.Lock()
	defer body.mu.Unlock()
	if body.over {
		return
	}
	body.limit = limit
	body.extend()
}

// late reports whether a body has not arrived in its time.
func late(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
