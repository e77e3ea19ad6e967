package host

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

const (
	// sidecarInterval is how often the health of sidecars is checked.
	sidecarInterval = 5 * time.Second
	// concurrentChecks bounds how many sidecars are checked at once.
	concurrentChecks = 16
)

// syncSidecar brings the actor's record in line with its sidecar: where it is reached, whether its
// daemon was restarted, and which policy is in force there. The sidecar's policy counts, because a
// change reaches it before the record.
func (a *actor) syncSidecar(
	ctx context.Context, record *lifecycle.Record, place lifecycle.Place,
) error {
	if record.Sidecar == nil {
		return nil
	}
	sidecar := *record.Sidecar
	sidecar.Port = place.SidecarPort
	restarts, err := a.host.options.Sidecars.Health(ctx, sidecar)
	if err != nil {
		return err
	}
	// Otherwise a change between the read and the record would be undone in the record.
	a.policy.Lock()
	defer a.policy.Unlock()
	policy, err := a.host.options.Sidecars.Policy(ctx, sidecar)
	if err != nil {
		return err
	}
	a.post(func() {
		record := a.record
		now := *record.Sidecar
		now.Port = sidecar.Port
		changed := now != *record.Sidecar || !reflect.DeepEqual(record.Spec.NetworkPolicy, &policy)
		record.Sidecar, record.Spec.NetworkPolicy = &now, &policy
		switch {
		case a.state() == lifecycle.StatePending, a.record.Stopped:
			// the egress daemon is a new one: it becomes durable with the next state, and needs no
			// event of its own
			now.Restarts, now.Silent = restarts, false
			a.setRecord(record)
			return
		case changed:
			a.saveOrRetry(synced, record)
		}
		a.sidecarAnswered(restarts)
	})
	return nil
}

// watchSidecars checks the health of the sidecars of sandboxes with a network, for as long as the
// host runs.
func (h *Host) watchSidecars() {
	defer h.tasks.Done()
	missed := map[*actor]bool{}
	for clock.Sleep(h.ctx, sidecarInterval) {
		missed = h.checkSidecars(missed)
	}
}

// checkSidecars checks each sidecar once, and returns the actors of those that did not answer. One
// that did not answer before either is recorded as silent.
func (h *Host) checkSidecars(missed map[*actor]bool) map[*actor]bool {
	var (
		mu        sync.Mutex
		group     sync.WaitGroup
		semaphore = make(chan struct{}, concurrentChecks)
		silent    = map[*actor]bool{}
	)
	for _, a := range h.registry.all() {
		record := a.snapshot()
		if record.Sidecar == nil || record.Sidecar.Port == 0 ||
			!record.Sandbox.Status.State.HasNetwork() ||
			record.Sandbox.Sleeps() { // the question, which its network carries, would wake the sandbox
			continue
		}
		semaphore <- struct{}{}
		group.Go(func() {
			defer func() { <-semaphore }()
			restarts, err := h.options.Sidecars.Health(h.ctx, *record.Sidecar)
			switch {
			case h.ctx.Err() != nil:
			case err == nil:
				a.post(func() { a.sidecarAnswered(restarts) })
			default:
				if missed[a] {
					a.log.Warn().Err(err).Msg("the egress daemon does not answer")
					a.post(a.sidecarMissed)
				}
				mu.Lock()
				defer mu.Unlock()
				silent[a] = true
			}
		})
	}
	group.Wait()
	return silent
}

func (a *actor) sidecarMissed() {
	if a.record.Sidecar == nil || a.record.Sidecar.Silent || !a.state().HasNetwork() {
		return
	}
	a.needsInspect = true // its container may have ended
	sidecar := *a.record.Sidecar
	sidecar.Silent = true
	a.showSidecar(sidecar, lifecycle.ReasonNetworkError,
		"the egress daemon does not answer; while it is down, nothing passes")
}

func (a *actor) sidecarAnswered(restarts int) {
	known := a.record.Sidecar
	if known == nil || restarts == known.Restarts && !known.Silent || !a.state().HasNetwork() {
		return
	}
	sidecar := *known
	sidecar.Restarts, sidecar.Silent = restarts, false
	message := "the egress daemon answers again"
	if restarts != known.Restarts {
		message = fmt.Sprintf(
			"the egress daemon died and was started again (restarts so far: %d); nothing passed "+
				"meanwhile",
			restarts)
	}
	a.showSidecar(sidecar, lifecycle.ReasonContainerRunning, message)
}

// showSidecar shows the condition of the egress daemon in the sandbox's status, and records it as
// an event.
func (a *actor) showSidecar(sidecar lifecycle.Sidecar, reason lifecycle.Reason, message string) {
	record := a.record
	record.Sidecar = &sidecar
	if a.state() == lifecycle.StateRunning { // in another state, its own reason matters more
		record.Sandbox.Status.Reason, record.Sandbox.Status.Message = reason, message
	}
	event := a.event(lifecycle.EventProgress)
	event.Reason, event.Message = reason, message
	a.log.Warn().Int("restarts", sidecar.Restarts).Msg(message)
	a.saveOrRetry(synced, record, event)
}
