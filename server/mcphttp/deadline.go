package mcphttp

import (
	"net/http"
	"time"
)

// writeTimeout is how long a client may take nothing of an answer before its connection is closed,
// as in package proxy.
const writeTimeout = 2 * time.Minute

// boundedWriter writes an answer to the client. No write or flush may take longer than
// writeTimeout: the server has no time limit of its own.
type boundedWriter struct {
	http.ResponseWriter
	controller *http.ResponseController
	streams    bool // HTTP/2, where a deadline ends a stream that nothing is written to, too
}

func newBoundedWriter(w http.ResponseWriter, r *http.Request) *boundedWriter {
	return &boundedWriter{w, http.NewResponseController(w), r.ProtoMajor == 2}
}

// Unwrap lets a http.ResponseController through.
func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// Write implements http.ResponseWriter.
func (b *boundedWriter) Write(data []byte) (int, error) {
	defer b.bound()()
	return b.ResponseWriter.Write(data)
}

// FlushError sends what has been written.
func (b *boundedWriter) FlushError() error {
	defer b.bound()()
	return b.controller.Flush()
}

// bound sets the deadline of a write, and returns what lifts it. Over HTTP/1 net/http does so after
// the response, whose last bytes it sends when the handler has returned.
func (b *boundedWriter) bound() (lift func()) {
	// A writer without deadlines, a test's, works without.
	_ = b.controller.SetWriteDeadline(time.Now().Add(writeTimeout))
	return func() {
		if b.streams {
			_ = b.controller.SetWriteDeadline(time.Time{})
		}
	}
}
