// Package slowread bounds how fast a report without an end is read, such as one of a daemon in a
// sandbox: what has taken the place of the daemon must not cost its reader the processor.
package slowread

import (
	"context"
	"io"

	"golang.org/x/time/rate"
)

// New returns a reader of from that reads so many bytes per second on average, and as many at once.
// Errors are those of from and of ctx.
func New(ctx context.Context, from io.Reader, bytesPerSecond int) io.Reader {
	return &reader{ctx: ctx, from: from, limit: rate.NewLimiter(rate.Limit(bytesPerSecond), bytesPerSecond)}
}

type reader struct {
	ctx   context.Context //nolint:containedctx // io.Reader has no parameter for it
	from  io.Reader
	limit *rate.Limiter
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p[:min(len(p), r.limit.Burst())])
	if n > 0 {
		if waited := r.limit.WaitN(r.ctx, n); waited != nil {
			return n, waited
		}
	}
	return n, err
}
