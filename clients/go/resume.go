package sandbox

import (
	"context"
	"time"
)

// resumption is how long and how often something is tried again after its connection was cut. The
// pauses grow from none to maxPause.
type resumption struct {
	what  string        // in errors
	limit time.Duration // without progress
	pause time.Duration // before the next attempt
	since time.Time     // of the first failure without progress since; zero before
}

// wait waits before the next attempt. It returns the error of ctx, and a *StreamError with the
// failure once there has been no progress for the limit.
func (r *resumption) wait(ctx context.Context, failure error) error {
	if r.since.IsZero() {
		r.since = time.Now()
	}
	if time.Since(r.since) > r.limit {
		return &StreamError{What: r.what, Err: failure}
	}
	if err := sleep(ctx, r.pause); err != nil {
		return err
	}
	r.pause = min(max(2*r.pause, firstPause), maxPause)
	return nil
}

// waitLong is wait after a request that was itself repeated with growing pauses.
func (r *resumption) waitLong(ctx context.Context, failure error) error {
	r.pause = maxPause
	return r.wait(ctx, failure)
}

// progressed begins limit and pauses again.
func (r *resumption) progressed() { r.since, r.pause = time.Time{}, 0 }
