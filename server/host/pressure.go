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
	// freshSleep is how long a sandbox must have slept, and wakesSoon how long it must have until the
	// time that it wants to be woken at, to go to the disk early: it would be back at once.
	freshSleep = 30 * time.Second
	wakesSoon  = time.Minute
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
	now := h.options.Clock()
	asleep := slices.DeleteFunc(h.registry.all(), func(a *actor) bool {
		record := a.snapshot()
		return hibernatesAt(record).IsZero() || now.Sub(record.Sandbox.Status.LastTransitionAt) < freshSleep ||
			!record.WakeAt.IsZero() && record.WakeAt.Before(now.Add(wakesSoon))
	})
	slices.SortFunc(asleep, func(a, b *actor) int {
		return a.snapshot().Sandbox.Status.LastTransitionAt.Compare(b.snapshot().Sandbox.Status.LastTransitionAt)
	})
	for _, a := range asleep {
		if h.ctx.Err() != nil || !h.isMemoryLow() {
			return
		}
		a.relieve()
	}
}

// relieve has the sandbox go to the disk at once, and waits for that. One that could not be brought
// there lately is left alone.
func (a *actor) relieve() {
	attempts := a.diskAttempts.Load()
	err := a.do(a.host.ctx, func() error {
		if a.sleep.hibernateAgain.After(a.host.options.Clock()) {
			return errBusy
		}
		a.sleep.hibernateNow = true
		return nil
	})
	if err != nil {
		return
	}
	a.await(a.host.ctx, relieveTimeout, func(r *lifecycle.Record) bool {
		return r.Stopped || r.Sandbox.Status.State != lifecycle.StatePaused || a.diskAttempts.Load() != attempts
	})
	a.post(func() { a.sleep.hibernateNow = false })
}
