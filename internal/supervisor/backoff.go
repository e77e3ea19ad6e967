package supervisor

import "time"

const (
	backoffFirst = 100 * time.Millisecond
	// backoffReset is how long a program must have run to count as healthy.
	backoffReset = 10 * time.Second
)

// backoff says how long to wait before a program is started again: not at all the first time, then
// 100 ms, doubling up to longest.
type backoff struct {
	longest time.Duration
	delay   time.Duration // the next one
}

// next returns the delay before the next start of a program that ran for the given time.
func (b *backoff) next(lived time.Duration) time.Duration {
	if lived >= backoffReset {
		b.delay = 0
	}
	delay := b.delay
	b.delay = min(max(2*delay, backoffFirst), b.longest)
	return delay
}
