package command

import "time"

// A process that a command left behind may write for ever, and as fast as it can. Its output is
// thrown away, but it has to be read: a full pipe would stop the process, and a closed one would
// kill it. So that this costs little however many such processes there are, their pipes are read in
// turn, a few per interval: one of them is taken 6 MiB a second off, all of them together 100 MiB.
const (
	leftoverInterval = 10 * time.Millisecond
	leftoverBatch    = 16 // reads per interval, of at most eventlog.MaxFragment bytes each
)

// leftovers are the outputs of ended commands that have something to be thrown away. The poller's
// mutex guards them.
type leftovers struct {
	waiting []leftover // in the order in which they became readable; each output is in it at most once
	timer   *time.Timer
	closed  bool
}

// leftover is one output of a run.
type leftover struct {
	run    *run
	output int
}

// postpone has an output of an ended command, which can be read, read in its turn.
func (p *poller) postpone(l leftover) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leftovers.waiting = append(p.leftovers.waiting, l)
	if len(p.leftovers.waiting) == 1 {
		p.scheduleLeftovers()
	}
}

// scheduleLeftovers sets the timer for the next turn. The caller holds mu.
func (p *poller) scheduleLeftovers() {
	switch {
	case p.leftovers.closed:
	case p.leftovers.timer == nil:
		p.leftovers.timer = time.AfterFunc(leftoverInterval, p.discardReady)
	default:
		p.leftovers.timer.Reset(leftoverInterval)
	}
}

// discardReady reads and discards those whose turn it is. Nothing of it can block.
func (p *poller) discardReady() {
	p.mu.Lock()
	batch := p.leftovers.waiting[:min(leftoverBatch, len(p.leftovers.waiting))]
	p.leftovers.waiting = append([]leftover(nil), p.leftovers.waiting[len(batch):]...)
	p.mu.Unlock()
	for _, l := range batch {
		l.run.deliver(excess<<l.output, false)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.leftovers.waiting) > 0 {
		p.scheduleLeftovers()
	}
}

// close stops reading. The caller holds the poller's mutex.
func (l *leftovers) close() {
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}
