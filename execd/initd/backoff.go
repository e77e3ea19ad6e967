package initd

import "time"

const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 5 * time.Second
	// backoffReset is how long a daemon must have lived to count as healthy.
	backoffReset = 10 * time.Second
)

// backoff says how long to wait before a daemon is started again: not at all the first time, then 100 ms, doubling up
// to 5 s. Its zero value is ready to use.
type backoff struct {
	delay time.Duration // the next one
}

// next returns the delay before the next start of a daemon that lived for the given time.
func (b *backoff) next(lived time.Duration) time.Duration {
	if lived >= backoffReset {
		b.delay = 0
	}
	delay := b.delay
	b.delay = min(max(2*delay, backoffFirst), backoffMax)
	return delay
}
