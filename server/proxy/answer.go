package proxy

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"time"

	"sandbox.internal/internal/forward"
)

// stuckAfter is how long a client may take nothing of an answer before it is given up.
const stuckAfter = 2 * time.Minute

// answer is the way of an answer to the client.
type answer struct {
	http.ResponseWriter
	controller *http.ResponseController
	exchange   *forward.Exchange
	streams    bool     // HTTP/2, where a deadline ends a stream that nothing is written to, too
	own        []header // what the layers around us have set; it stands
	shared     bool     // Target.SharedOrigin
	taken      bool     // the connection was taken over for another protocol
	// length is that of a small answer, 0 for any other. Such a one leaves in one piece when
	// it came in one: a timer to send its parts on would cost as much as the rest of its way.
	length, written int64
}

// header is one of an [http.Header].
type header struct {
	name   string
	values []string
}

func newAnswer(w http.ResponseWriter, r *http.Request, shared bool, exchange *forward.Exchange) *answer {
	before := w.Header()
	own := make([]header, 0, len(before))
	for name, values := range before {
		// Values that are added to it later are not ours.
		own = append(own, header{name, slices.Clip(values)})
	}
	return &answer{ResponseWriter: w, controller: http.NewResponseController(w), exchange: exchange,
		streams: r.ProtoMajor == 2, own: own, shared: shared}
}

// Unwrap lets an http.ResponseController through.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// restore puts back the headers of the layers around us, which an interim response
// has emptied, and takes the same ones out of the server's.
func (a *answer) restore(server http.Header) {
	to := a.Header()
	for _, own := range a.own {
		to[own.name] = own.values
		server.Del(own.name)
	}
}

// WriteHeader sends a status, and of an interim answer what may pass.
func (a *answer) WriteHeader(status int) {
	if status > http.StatusContinue && status < http.StatusOK && status != http.StatusSwitchingProtocols {
		withoutCommands(a.Header())
		if a.shared {
			confineInterim(a.Header())
		}
	}
	a.exchange.WriteHeader(a.ResponseWriter, status)
}

// Write bounds how long a client may hold up its answer, as the server has no write
// timeout.
func (a *answer) Write(p []byte) (int, error) {
	defer a.bound()()
	n, err := a.ResponseWriter.Write(p)
	if a.written += int64(n); err == nil && a.written < a.length {
		err = a.controller.Flush()
	}
	return n, err
}

// FlushError sends what has been written.
func (a *answer) FlushError() error {
	defer a.bound()()
	return a.controller.Flush()
}

// bound sets the deadline of a write, and returns what lifts it. Over HTTP/1 net/http does so after
// the response, and until then a deadline is for writes alone.
func (a *answer) bound() (lift func()) {
	// A writer without deadlines, a test's, works without.
	_ = a.controller.SetWriteDeadline(time.Now().Add(stuckAfter))
	return func() {
		if a.streams {
			_ = a.controller.SetWriteDeadline(time.Time{})
		}
	}
}

// Hijack gives the connection away.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := forward.Hijack(a.ResponseWriter)
	if err != nil {
		return nil, nil, err
	}
	a.taken = true
	return conn, buffered, nil
}
