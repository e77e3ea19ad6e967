package host

import (
	"context"
	"errors"
	"time"

	"sandbox.internal/server/clock"
	"sandbox.internal/server/lifecycle"
)

// provision is the job of Pending: it launches the sandbox's box. After a crash of the service it
// runs again.
func (a *actor) provision(
	ctx context.Context, record lifecycle.Record, auth *lifecycle.ImageAuth, launched bool,
) func() {
	launch := lifecycle.Launch{
		Auth:    auth,
		Fresh:   !launched,
		Ready:   func(place lifecycle.Place) error { return a.syncSidecar(ctx, &record, place) },
		Doing:   func(message string) { a.showProgress(lifecycle.ReasonContainerStarting, message) },
		Waiting: a.waiting,
	}
	launch.Reached = func(stage lifecycle.Stage) {
		launch.Fresh = false
		a.reached(stage)
	}
	if record.HostNetwork {
		if err := a.awaitSlot(ctx); err != nil {
			return a.broken(ctx, err)
		}
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		place, err := a.host.options.Boxes.Launch(ctx, record, launch)
		switch {
		case err == nil && ctx.Err() == nil:
			return func() { a.provisioned(place) }
		case !errors.Is(err, lifecycle.ErrBoxUnavailable) || ctx.Err() != nil:
			return a.broken(ctx, err)
		}
		a.log.Warn().
			Err(err).
			Dur("retry_in", pause).
			Msg("provisioning waits for the container engine")
		a.waiting(lifecycle.ReasonEngineUnavailable,
			"waiting for the container engine: "+err.Error())
		if !clock.Sleep(ctx, pause) {
			return nil
		}
	}
}

func (a *actor) provisioned(place lifecycle.Place) {
	if a.state() != lifecycle.StatePending {
		return
	}
	a.record.Port = place.Port
	if place.Entrypoint != nil {
		a.record.Sandbox.Entrypoint = place.Entrypoint
	}
	a.recordTransition(lifecycle.TriggerProvisioned, lifecycle.ReasonContainerRunning,
		"execd answers")
	if created := a.record.Sandbox.CreatedAt; !created.Before(a.host.since) {
		a.host.options.Observer.Provisioned(a.host.options.Clock().Sub(created))
	}
}

// showProgress shows a step of provisioning in the status.
func (a *actor) showProgress(reason lifecycle.Reason, message string) {
	a.post(func() {
		if a.state() == lifecycle.StatePending {
			a.progress(reason, message)
		}
	})
}

// waiting is showProgress for steps that may take minutes. The first message becomes an event, and
// then the latest one every few seconds.
func (a *actor) waiting(reason lifecycle.Reason, message string) {
	a.post(func() {
		if a.state() != lifecycle.StatePending {
			return
		}
		a.progress(reason, message)
		event := a.event(lifecycle.EventProgress)
		recent := reason == a.lastProgress.Reason &&
			event.Time.Sub(a.lastProgress.LastTransitionAt) < progressInterval
		if recent || len(a.unsaved) > 0 {
			return
		}
		a.lastProgress = lifecycle.Status{Reason: reason, LastTransitionAt: event.Time}
		event.Reason, event.Message = reason, message
		a.saveOrRetry(synced, a.record, event)
	})
}
