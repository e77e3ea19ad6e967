package listen

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// bodyTime is how long a body has to arrive, and an upload to go on. With the time
	// for unread output it stays below half a minute.
	bodyTime = 25 * time.Second
	// unreadTime is how long net/http may read what a handler has left of a body, which
	// it does before it uses the connection again or closes it.
	unreadTime = 4 * time.Second
)

// withRequestBodies bounds the body of every request in time, for net/http has no limit of its own
// that would permit an upload to take longer than a small body may, and ends it with its handler.
func withRequestBodies(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		body := &requestBody{ReadCloser: r.Body, writer: w,
			controller: http.NewResponseController(w), limit: limit}
		body.idle.L = &body.mu
		body.extend()
		defer body.finish()
		// net/http looks for the body that it has made in its own request, which therefore stays
		// as it is: else a body that the client announces with Expect is awaited after a refusal.
		bounded := *r
		bounded.Body = body
		next.ServeHTTP(w, &bounded)
	})
}

// errHandlerReturned is the error of a read after the request's handler has returned.
var errHandlerReturned = errors.New("serve: read of a request body after its handler has returned")

// requestBody is the body of one request. Only one goroutine reads it at a time, and none once the
// handler has returned: net/http reads the connection itself from then on, and would take what is
// left of the body for the next request, or panic in the goroutine that still reads.
//
// As a whole it has the limit as its time, unless a pace was set that says otherwise.
type requestBody struct {
	io.ReadCloser // net/http's own
	writer        http.ResponseWriter
	controller    *http.ResponseController
	limit         time.Duration

	mu      sync.Mutex
	idle    sync.Cond // signals that reading is false
	pace    pace
	reading bool  // a Read is in net/http's body
	ended   error // what every further Read returns: io.EOF after a whole body
}

// pace says what the deadline of a body is about.
type pace int

const (
	paceWhole      pace = iota // all of the body
	pacePart                   // each part of it
	paceNoDeadline             // nothing
	paceForwarded              // nothing, and another goroutine may read the body
)

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.reading {
		b.idle.Wait()
	}
	if b.ended != nil {
		return 0, b.ended
	}
	if b.pace == pacePart {
		b.extend()
	}
	n, err := b.read(p)
	if err != nil && b.ended == nil {
		b.ended = err
		if errors.Is(err, io.EOF) {
			// From here on net/http reads to notice when the client leaves, for as long as
			// the handler likes.
			b.set(time.Time{})
		}
	}
	return n, err
}

// read reads without the lock, so that the read can be interrupted. The caller holds mu.
func (b *requestBody) read(p []byte) (int, error) {
	b.reading = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.reading = false
		b.idle.Broadcast()
	}()
	return b.ReadCloser.Read(p)
}

// Close ends the body for every reader. The unread rest is left to net/http: its own Close would
// read on, for as long as the client sends.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended == nil {
		b.ended = http.ErrBodyReadAfterClose
	}
	return nil
}

// finish gives the connection back to net/http. A Read that another goroutine has begun is
// interrupted and awaited. A connection on which a body was forwarded that did not come to its end
// carries no further request: where the next one begins is known only at the end of the body, and
// in full duplex net/http goes on even when it has failed to find it.
func (b *requestBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	whole := errors.Is(b.ended, io.EOF)
	interrupted := b.reading
	if !whole {
		b.ended = errHandlerReturned
	}
	if b.reading && b.controller.SetReadDeadline(time.Unix(1, 0)) == nil {
		for b.reading {
			b.idle.Wait()
		}
	}
	if whole {
		return
	}
	b.set(time.Now().Add(min(b.limit, unreadTime)))
	if interrupted || b.pace == paceForwarded {
		b.closeConnection()
	}
}

// closeConnection has net/http close the connection after the response, as it does for a body
// beyond the limit of a MaxBytesReader: there is no other way once the header is written. Before
// it does, the rest of the body is read for a while: see lingering.
func (b *requestBody) closeConnection() {
	_, _ = http.MaxBytesReader(b.writer, io.NopCloser(strings.NewReader("beyond")), 0).Read(make([]byte, 1))
}

// extend and set ignore errors: a writer without deadlines is a test's.
func (b *requestBody) extend() { b.set(time.Now().Add(b.limit)) }

func (b *requestBody) set(deadline time.Time) { _ = b.controller.SetReadDeadline(deadline) }

func setPace(r *http.Request, pace pace) {
	body, ok := r.Body.(*requestBody)
	if !ok {
		return
	}
	body.mu.Lock()
	defer body.mu.Unlock()
	body.pace = pace
	if pace >= paceNoDeadline && body.ended == nil {
		body.set(time.Time{})
	}
}

// WithoutDeadline removes the deadline of a request's body, for handlers that have checked who
// sends it. Call it before anything else wraps the body.
func WithoutDeadline(r *http.Request) { setPace(r, paceNoDeadline) }

// DeadlinePerPart gives each part of a request's body the time that the whole body has otherwise,
// for handlers of uploads that have checked who sends them. Call it before anything else wraps the
// body.
func DeadlinePerPart(r *http.Request) { setPace(r, pacePart) }

// ForwardBody is for handlers that have checked who sends a request and forward it to another
// server, perhaps in full duplex. The body has no deadline any more, as it may be one half of a
// conversation. When the handler returns before the body was read to its end, the connection is
// closed after the response. Call it before anything else wraps the body.
func ForwardBody(r *http.Request) { setPace(r, paceForwarded) }

// SetBodyTime sets how long each part of a request's body may take to arrive.
func SetBodyTime(of io.ReadCloser, limit time.Duration) {
	body, ok := of.(*requestBody)
	if !ok {
		return
	}
	body.mu.Lock()
	defer body.mu.Unlock()
	if body.ended != nil {
		return
	}
	body.limit = limit
	body.extend()
}

// Late reports whether a body has not arrived in its time.
func Late(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
