package kernel

import "time"

// patienceTick is the step in which a Patience counts.
const patienceTick = 100 * time.Millisecond

// Patience is how long a kernel may take for something, in time in which it can run. Time in which
// its processes are stopped does not count, nor does time in which this process is stopped together
// with them: a ticker makes up for no tick that it has missed.
type Patience struct {
	// C has a value whenever Exhausted is to be called.
	C      <-chan time.Time
	ticker *time.Ticker
	whole  time.Duration
	left   time.Duration
	frozen func() bool
}

// NewPatience begins to count down from left. frozen reports whether the kernels' processes are
// stopped; nil means that they never are. The caller must call Stop. It costs ten wakes of the
// caller per second.
func NewPatience(left time.Duration, frozen func() bool) *Patience {
	ticker := time.NewTicker(patienceTick)
	return &Patience{C: ticker.C, ticker: ticker, whole: left, left: left, frozen: frozen}
}

// Exhausted counts one value of C, and reports whether the time is over.
func (p *Patience) Exhausted() bool {
	if p.frozen == nil || !p.frozen() {
		p.left -= patienceTick
	}
	return p.left <= 0
}

// Restart begins the counting again.
func (p *Patience) Restart() { p.left = p.whole }

// Stop ends the counting.
func (p *Patience) Stop() { p.ticker.Stop() }
