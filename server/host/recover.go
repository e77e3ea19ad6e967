package host

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// recover takes up every record of the store, and every container of ours that the store does not know.
func (h *Host) recover(ctx context.Context) error {
	records, err := h.Store.Load(ctx)
	if err != nil {
		return fmt.Errorf("load the records: %w", err)
	}
	containers, err := h.Engine.List(ctx, h.ours())
	if err != nil {
		return fmt.Errorf("list the containers: %w", err)
	}
	for _, record := range records {
		h.spawn(record, nil, false)
	}
	adopted := 0
	for _, container := range containers {
		if _, err := h.registry.get(container.Labels[labelID]); err == nil {
			continue
		}
		if isSidecar(container) {
			continue // its sandbox may follow
		}
		record, ok := recordOf(container)
		if !ok {
			h.removeStray(ctx, container)
			continue
		}
		if err := h.Store.Insert(ctx, record, nil, stateEvent("", record.Sandbox)); err != nil {
			return fmt.Errorf("save sandbox %s, rebuilt from its container: %w", record.Sandbox.ID, err)
		}
		h.spawn(record, nil, false)
		adopted++
	}
	for _, container := range containers {
		if _, err := h.registry.get(container.Labels[labelID]); err != nil && isSidecar(container) {
			h.removeStray(ctx, container)
		}
	}
	h.Logger.Info().Int("records", len(records)).Int("rebuilt_from_containers", adopted).Msg("sandboxes taken up")
	return nil
}

func (h *Host) ours() map[string]string { return map[string]string{labelInstance: h.Instance} }

// recordOf rebuilds the record of a container that lives. The expiry is the one at creation: renewals are only in the store.
func recordOf(container engine.Container) (lifecycle.Record, bool) {
	var record lifecycle.Record
	if json.Unmarshal([]byte(container.Labels[labelRecord]), &record) != nil || record.Sandbox.ID != container.Labels[labelID] {
		return lifecycle.Record{}, false
	}
	status := &record.Sandbox.Status
	switch container.Status {
	case engine.StatusRunning:
		status.State = lifecycle.StatePending
	case engine.StatusFrozen:
		status.State = lifecycle.StatePaused
	default:
		return lifecycle.Record{}, false
	}
	status.Reason, status.Message = lifecycle.ReasonProvisioning, "rebuilt from its container: the record was lost"
	record.Port = portOf(container)
	record.Sandbox.Stages = nil // the label has only those before the container was made
	return record, true
}

// watch listens to the engine for as long as the host runs.
func (h *Host) watch() {
	defer h.tasks.Done()
	for pause := 100 * time.Millisecond; h.ctx.Err() == nil; pause = min(2*pause, 5*time.Second) {
		ready := func() {
			pause = 100 * time.Millisecond
			for _, a := range h.registry.all() { // what happened while nobody listened
				a.mayHaveChanged()
			}
		}
		err := h.Engine.Watch(h.ctx, h.ours(), ready, func(event engine.Event) {
			if a, err := h.registry.get(event.Labels[labelID]); err == nil {
				a.heard(event.Type)
			}
		})
		if h.ctx.Err() == nil {
			h.Logger.Warn().Err(err).Dur("retry_in", pause).Msg("the container engine hung up")
			sleep(h.ctx, pause)
		}
	}
}

// mayHaveChanged makes the actor look at its container as soon as it has nothing else to do.
func (a *actor) mayHaveChanged() { a.post(func() { a.look = true }) }

// heard makes the actor look when what the engine tells is not what the sandbox's state is about anyway. A look that is under way may
// have seen the container as it was before.
func (a *actor) heard(event engine.EventType) {
	a.post(func() {
		switch state := a.state(); {
		case event == engine.EventStarted && state == lifecycle.StatePending:
		case event == engine.EventFrozen && (state == lifecycle.StatePausing || state == lifecycle.StatePaused && a.job == nil):
		case event == engine.EventThawed && (state == lifecycle.StateResuming || state == lifecycle.StateRunning && a.job == nil):
		default:
			a.look = true
		}
	})
}

func (h *Host) sweepPeriodically() {
	defer h.tasks.Done()
	for sleep(h.ctx, sweepInterval) {
		h.sweep()
	}
}

// sweep removes containers that nobody answers for, which only a call that the engine carried out after it had seemed to fail can
// leave, and makes those look whose container is not what their record says: an event may have been lost, or the look that it asked
// for may have failed. It also forgets old idempotency keys and events.
func (h *Host) sweep() {
	containers, err := h.Engine.List(h.ctx, h.ours())
	if err != nil {
		h.Logger.Warn().Err(err).Msg("containers cannot be compared with records")
	} else {
		h.compare(containers)
	}
	if err := h.Store.PurgeKeys(h.ctx, h.Clock().Add(-lifecycle.IdempotencyWindow)); err != nil {
		h.Logger.Warn().Err(err).Msg("old idempotency keys cannot be removed")
	}
	if err := h.Store.TrimEvents(h.ctx, keptEvents, h.Clock().Add(-keptEventsFor)); err != nil {
		h.Logger.Warn().Err(err).Msg("old events cannot be removed")
	}
}

func (h *Host) compare(containers []engine.Container) {
	found, sidecars := make(map[string]engine.Status, len(containers)), map[string]engine.Status{}
	for _, container := range containers {
		id := container.Labels[labelID]
		if isSidecar(container) {
			sidecars[id] = container.Status
		} else {
			found[id] = container.Status
		}
		if a, err := h.registry.get(id); err != nil || a.now().Removed {
			h.removeStray(h.ctx, container)
		}
	}
	settled := map[lifecycle.State]engine.Status{lifecycle.StateRunning: engine.StatusRunning, lifecycle.StatePaused: engine.StatusFrozen}
	for _, a := range h.registry.all() {
		record := a.now()
		want, ok := settled[record.Sandbox.Status.State]
		if ok && (found[a.id] != want || record.Sidecar != nil && sidecars[a.id] != engine.StatusRunning) {
			a.mayHaveChanged()
		}
	}
}

func (h *Host) removeStray(ctx context.Context, container engine.Container) {
	err := h.Engine.Remove(ctx, container.ID)
	h.Logger.Warn().AnErr("error", err).Str("container", container.Name).Msg("removed a container that has no record")
}

func shortDigest(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}
