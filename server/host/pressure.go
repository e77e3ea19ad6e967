package host

import (
	"slices"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

const (
	// pressureInterval is how often the memory of the machine is looked at.
	pressureInterval = 10 * time.Second
	// lowMemoryPercent is how much of the machine's memory must be available: with less, sandboxes
	// that are to go to the disk later do so at once.
	lowMemoryPercent = 10
	// relieveTimeout is how long one sandbox may take to go to the disk until the next one does.
	relieveTimeout = 10 * time.Second
)

// watchMemory relieves the memory of the machine for as long as the host runs.
func (h *Host) watchMemory() {
	defer h.tasks.Done()
	for h.options.AvailableMemory != nil && clock.Sleep(h.ctx, pressureInterval) {
		h.relieveMemory()
	}
}

// isMemoryLow reports whether the machine has too little memory.
func (h *Host) isMemoryLow() bool {
	percent, err := h.options.AvailableMemory()
	if err != nil {
		h.options.Logger.Warn().Err(err).Msg("cannot read how much memory the machine has")
	}
	return err == nil && percent < lowMemoryPercent
}

// relieveMemory brings sandboxes that sleep to the disk, those first that have slept longest, one
// at a time, while the machine has too little memory.
func (h *Host) relieveMemory() {
	if !h.isMemoryLow() {
		return
	}
	asleep := slices.DeleteFunc(h.registry.all(), func(a *actor) bool { return hibernatesAt(a.snapshot()).IsZero() })
	slices.SortFunc(asleep, func(a, b *actor) int {
		return a.snapshot().Sandbox.Status.LastTransitionAt.Compare(b.snapshot().Sandbox.Status.LastTransitionAt)
	})
	for _, a := range asleep {
		if h.ctx.Err() != nil || !h.isMemoryLow() {
			return
		}
		a.post(func() { a.sleep.hibernateNow = true })
		a.await(h.ctx, relieveTimeout, func(r *lifecycle.Record) bool {
			return r.Stopped || r.Sandbox.Status.State != lifecycle.StatePaused
		})
	}
}
