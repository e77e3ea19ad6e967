package host

import (
	"context"
	"fmt"

	"sandbox.internal/server/lifecycle"
)

// Suspend implements lifecycle.SnapshotStore.
func (h *Host) Suspend(ctx context.Context, id string) error {
	if err := h.options.Boxes.SuspensionUnsupported(); err != nil {
		return err
	}
	a, err := h.registry.get(id)
	if err != nil {
		return err
	}
	if a.snapshot().Sandbox.Sleeps() {
		if err := h.Wake(ctx, id); err != nil {
			return err
		}
	}
	// The egress sidecar is made again with the policy of the record: a change is either in it, or
	// comes too late.
	a.policy.Lock()
	err = a.do(ctx, a.beginSuspension)
	a.policy.Unlock()
	if err != nil {
		return err
	}
	a.await(ctx, actTimeout, func(r *lifecycle.Record) bool { return r.Sandbox.Status.State != lifecycle.StatePausing })
	return nil
}

// beginSuspension records that the processes of the sandbox are to be ended and its files kept.
func (a *actor) beginSuspension() error {
	if state := a.state(); state != lifecycle.StateRunning {
		return state.Conflict(string(lifecycle.TriggerPause), lifecycle.StateRunning)
	}
	record, err := a.afterTransition(lifecycle.TriggerPause,
		lifecycle.Status{Reason: lifecycle.ReasonUserPause, Message: "is being stopped by a client; its files are kept"})
	if err != nil {
		return err
	}
	record = withoutPlace(record)
	record.Stopped = true
	return a.commit(synced, record, a.eventsTo(record)...)
}

// suspend is the job of Pausing for a sandbox whose processes are to be ended. A service that is
// killed meanwhile repeats it.
func (a *actor) suspend(ctx context.Context, record lifecycle.Record) func() {
	if !a.awaitSnapshots(ctx) {
		return nil
	}
	err := a.retry(ctx, "suspend", func(ctx context.Context) error { return a.host.options.Boxes.Suspend(ctx, record) })
	switch {
	case err == nil:
		return func() {
			if a.state() == lifecycle.StatePausing {
				a.recordTransition(lifecycle.TriggerPaused, a.record.Sandbox.Status.Reason,
					"stopped; its files are kept, and resume starts its entrypoint again")
			}
		}
	case missing(err): // it has ended by itself, and its files are gone
		record.Stopped = false
		return a.inspect(ctx, record)
	case ctx.Err() != nil:
		return nil
	}
	// To give up would remove its files, as of a host whose disk is full for a while: the service
	// tries again until a client deletes the sandbox or its time is up.
	return func() {
		if a.state() == lifecycle.StatePausing {
			a.progress(a.record.Sandbox.Status.Reason, fmt.Sprintf("waiting for the container engine, which cannot end the processes: %v", err))
		}
	}
}
