package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// recover starts an actor for every record of the store, and for every box whose record the store
// has lost.
func (h *Host) recover(ctx context.Context) error {
	records, err := h.options.Store.Load(ctx)
	if err != nil {
		return fmt.Errorf("load the records: %w", err)
	}
	boxes, err := h.options.Boxes.List(ctx)
	if err != nil {
		return fmt.Errorf("list the containers: %w", err)
	}
	for _, record := range records {
		h.spawn(record, nil, false)
	}
	var discards sync.WaitGroup // all at once: a killed service may leave as many as it made ahead
	defer discards.Wait()
	adopted, stopped := 0, 0
	for _, box := range boxes {
		if box.Status == lifecycle.BoxStopped {
			stopped++
		}
		if a := h.registry.owner(box.ID); a != nil && !a.snapshot().Removed {
			continue
		}
		// no sandbox, one with another box, or one whose box was removed
		rebuilt := box.Rebuild()
		if rebuilt == nil || h.registry.has(rebuilt.Sandbox.ID) {
			discards.Go(func() { h.discard(ctx, box) })
			continue
		}
		record := *rebuilt
		if err := h.options.Store.Insert(
			ctx, record, nil, stateEvent("", record.Sandbox),
		); err != nil {
			return fmt.Errorf("save sandbox %s, rebuilt from its container: %w", record.Sandbox.ID,
				err)
		}
		h.spawn(record, nil, false)
		adopted++
	}
	h.options.Logger.Info().
		Int("records", len(records)).
		Int("rebuilt_from_containers", adopted).
		Int("kept_across_reboot", stopped).
		Msg("sandboxes recovered")
	return nil
}

// watch follows the events of boxes for as long as the host runs.
func (h *Host) watch() {
	defer h.tasks.Done()
	for pause := 100 * time.Millisecond; h.ctx.Err() == nil; pause = min(2*pause, 5*time.Second) {
		ready := func() {
			pause = 100 * time.Millisecond
			// an event may have been missed before the subscription
			for _, a := range h.registry.all() {
				a.inspectSoon()
			}
		}
		err := h.options.Boxes.Watch(h.ctx, ready, func(id string, event lifecycle.BoxEvent) {
			if a := h.registry.owner(id); a != nil {
				a.onBoxEvent(event)
			}
		})
		if h.ctx.Err() == nil {
			h.options.Logger.Warn().
				Err(err).
				Dur("retry_in", pause).
				Msg("the container engine closed the stream of events")
			clock.Sleep(h.ctx, pause)
		}
	}
}

// inspectSoon makes the actor inspect its box once no other job runs.
func (a *actor) inspectSoon() { a.post(func() { a.needsInspect = true }) }

// onBoxEvent makes the actor inspect its box when the event is not the effect of its own job. A
// running inspection may have seen the box as it was before.
func (a *actor) onBoxEvent(event lifecycle.BoxEvent) {
	a.post(func() {
		noJob := a.cancelRunning == nil
		switch state := a.state(); {
		case event == lifecycle.BoxEventStarted && state == lifecycle.StatePending:
		case event == lifecycle.BoxEventFrozen &&
			(state == lifecycle.StatePausing || state == lifecycle.StatePaused && noJob):
		case event == lifecycle.BoxEventThawed && (a.sleep.thawing ||
			state == lifecycle.StateResuming || state == lifecycle.StateRunning && noJob):
		default:
			a.needsInspect = true
		}
	})
}

func (h *Host) sweepPeriodically() {
	defer h.tasks.Done()
	for clock.Sleep(h.ctx, sweepInterval) {
		h.sweep()
	}
}

// sweep removes boxes without a sandbox, which remain when the engine carries out a call that it
// had reported as failed, and makes the actors inspect whose box differs from their record: an
// event, or the inspection after it, may have failed. It also forgets old idempotency keys and
// events.
//
// Before all that it wakes the actors whose time has come.
func (h *Host) sweep() {
	h.wakeDue()
	boxes, err := h.options.Boxes.List(h.ctx)
	if err != nil {
		h.options.Logger.Warn().Err(err).Msg("cannot compare containers with records")
	} else {
		h.compare(boxes)
	}
	h.sweepSnapshots()
	now := h.options.Clock()
	if err := h.options.Store.PurgeKeys(h.ctx, now.Add(-lifecycle.IdempotencyWindow)); err != nil {
		h.options.Logger.Warn().Err(err).Msg("cannot remove old idempotency keys")
	}
	if err := h.options.Store.TrimEvents(h.ctx, keptEvents, now.Add(-keptEventsFor)); err != nil {
		h.options.Logger.Warn().Err(err).Msg("cannot remove old events")
	}
}

// wakeDue wakes the actors whose time has come by the wall clock. Their timers run by the monotonic
// clock, so they are late after the clock was set forward or the machine was suspended.
func (h *Host) wakeDue() {
	now := h.options.Clock()
	for _, a := range h.registry.all() {
		record := a.snapshot()
		for _, at := range []time.Time{dueAt(record), hibernatesAt(record)} {
			if !at.IsZero() && !now.Before(at) {
				a.post(func() {})
				break
			}
		}
	}
}

func (h *Host) compare(boxes []lifecycle.BoxListing) {
	found := make(map[string]lifecycle.BoxListing, len(boxes))
	for _, box := range boxes {
		found[box.ID] = box
		if a := h.registry.owner(box.ID); a == nil || a.snapshot().Removed {
			h.discard(h.ctx, box)
		}
	}
	settled := map[lifecycle.State]lifecycle.BoxStatus{
		lifecycle.StateRunning: lifecycle.BoxRunning, lifecycle.StatePaused: lifecycle.BoxFrozen,
	}
	for _, a := range h.registry.all() {
		record := a.snapshot()
		box := found[record.Box]
		want, ok := settled[record.Sandbox.Status.State]
		if record.Stopped && want == lifecycle.BoxFrozen {
			if box.Status != lifecycle.BoxStopped && box.Status != lifecycle.BoxEnded {
				a.inspectSoon() // a box that has ended is one that failed to start again
			}
			continue
		}
		joined := record.Sidecar != nil || record.SpareNetwork
		if ok && (box.Status != want || joined && box.Network != lifecycle.BoxRunning) {
			a.inspectSoon()
		}
	}
}

func (h *Host) discard(ctx context.Context, box lifecycle.BoxListing) {
	err := h.options.Boxes.Discard(ctx, box)
	h.options.Logger.Warn().
		AnErr("error", err).
		Strs("containers", box.Parts).
		Msg("removed containers that have no record")
}
