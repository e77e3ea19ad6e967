package keeper

import "time"

const (
	// outputRate is how many bytes a second of one container's output are moved, once it has
	// printed outputBurst. What moves them runs outside of the container's limits of CPU time:
	// without a rate, a quarter of a core in a container took more than that here, and wrote 370
	// MiB/s.
	outputRate  = 1 << 20
	outputBurst = 16 << 20
	// leastMoved is what a movement counts at least, for containers that print a byte at a time.
	leastMoved = 4 << 10
)

// allowance is how much of a container's output may be moved. Its zero value is unused.
type allowance struct {
	debt int64 // bytes that were moved and that time has not made up for
	at   time.Time
}

// spend counts bytes that were moved, and returns how long the next must wait. Meanwhile the FIFO
// fills, and then the container waits.
func (a *allowance) spend(bytes int64, now time.Time) time.Duration {
	if !a.at.IsZero() {
		elapsed := max(now.Sub(a.at), 0)
		a.debt = max(0, a.debt-int64(elapsed.Seconds()*outputRate))
	}
	a.at = now
	a.debt += max(bytes, leastMoved)
	if a.debt <= outputBurst {
		return 0
	}
	return time.Duration(float64(a.debt-outputBurst) / outputRate * float64(time.Second))
}
