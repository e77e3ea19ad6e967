package respond

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// writeBlock is how many bytes are written at most before the client gets its time
// again, so that how long an answer takes does not matter while the client takes it.
const writeBlock = 256 << 10

// BoundedWriter returns a writer of a response's body that gives up on a client
// which does not take 256 KiB within the timeout; 0 means [DefaultWriteTimeout]. Without it a
// stuck client would hold its handler for ever, as the server has no write timeout.
func BoundedWriter(w http.ResponseWriter, timeout time.Duration) io.Writer {
	bounded := newBoundedWriter(w, timeout)
	return &bounded
}

func newBoundedWriter(w http.ResponseWriter, timeout time.Duration) boundedWriter {
	if timeout == 0 {
		timeout = DefaultWriteTimeout
	}
	return boundedWriter{w: w, controller: http.NewResponseController(w), timeout: timeout}
}

type boundedWriter struct {
	w          http.ResponseWriter
	controller *http.ResponseController
	timeout    time.Duration
}

func (b *boundedWriter) Write(p []byte) (written int, err error) {
	for {
		if err := b.extend(); err != nil {
			return written, err
		}
		n, err := b.w.Write(p[written:min(written+writeBlock, len(p))])
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

// extend gives the next block its time. net/http lifts the deadline after the
// response, so it also covers the last bytes, sent when the handler has returned.
func (b *boundedWriter) extend() error {
	err := b.controller.SetWriteDeadline(time.Now().Add(b.timeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set write deadline: %w", err)
	}
	return nil
}
