package host

import (
	"context"
	"time"

	"sandbox.internal/server/lifecycle"
)

// Sweep does at once what the host does every minute.
func (h *Host) Sweep() { h.sweep() }

// CheckSidecars does at once what the host does every few seconds. It takes and returns those that
// did not answer.
func (h *Host) CheckSidecars(missed map[*actor]bool) map[*actor]bool { return h.checkSidecars(missed) }

// UnwantSnapshot does what a fork does whose snapshot could not be deleted.
func (h *Host) UnwantSnapshot(id string) { h.snapshots.unwant(id) }

// LoseSnapshot does what the start of the host does for a snapshot that the engine does not have.
func (h *Host) LoseSnapshot(ctx context.Context, id string) error {
	k, err := h.snapshots.get(id)
	if err != nil {
		return err
	}
	return h.lostSnapshot(ctx, k)
}

// WaitingSnapshots returns how many snapshots wait until others are taken, each first of its
// sandbox.
func (h *Host) WaitingSnapshots() int { return h.snapshots.slots.waits() }

// WaitingForDisk returns how many sandboxes wait until others are on the disk.
func (h *Host) WaitingForDisk() int { return h.toDisk.waits() }

// RecordOf returns the published record of a sandbox.
func (h *Host) RecordOf(id string) lifecycle.Record {
	a, err := h.registry.get(id)
	if err != nil {
		panic(err)
	}
	return *a.snapshot()
}

// RelieveMemory does what is done when the memory of the machine is looked at.
func (h *Host) RelieveMemory() { h.relieveMemory() }

// RunsOf returns how often a sandbox has come into Running since the host was started.
func (h *Host) RunsOf(id string) int64 {
	a, err := h.registry.get(id)
	if err != nil {
		panic(err)
	}
	return a.runs.Load()
}

// UntilDueOf returns the time until the actor of a sandbox has something to do by itself.
func (h *Host) UntilDueOf(id string) (until time.Duration) {
	a, err := h.registry.get(id)
	if err != nil {
		panic(err)
	}
	_ = a.do(context.Background(), func() error {
		until = a.untilDue()
		return nil
	})
	return until
}

// HasAuth reports whether the actor of a sandbox holds credentials.
func (h *Host) HasAuth(id string) (has bool) {
	a, err := h.registry.get(id)
	if err != nil {
		panic(err)
	}
	_ = a.do(context.Background(), func() error {
		has = a.auth != nil
		return nil
	})
	return has
}
