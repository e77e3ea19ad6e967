package host

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"sandbox.internal/server/lifecycle"
)

// Create implements lifecycle.Backend.
func (h *Host) Create(
	ctx context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions,
) (lifecycle.Sandbox, error) {
	began := h.options.Clock()
	if spec.SnapshotID == "" { // one that begins with a snapshot is completed before it is valid
		if err := spec.Validate(); err != nil {
			return lifecycle.Sandbox{}, err
		}
	}
	// Close waits for creates, so that none begins work after the actors have ended.
	h.creating.RLock()
	defer h.creating.RUnlock()
	if h.ctx.Err() != nil {
		return lifecycle.Sandbox{}, lifecycle.Stopping()
	}
	if options.IdempotencyKey == "" {
		return h.create(ctx, spec, options, nil, began)
	}
	// The next request with the same key waits for this one's response; others do not.
	unlock, err := h.keys.lock(ctx, ownedKey{options.Owner, options.IdempotencyKey})
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	defer unlock()
	key := &lifecycle.IdempotencyKey{
		Owner:     options.Owner,
		Key:       options.IdempotencyKey,
		Digest:    spec.Digest(),
		CreatedAt: h.options.Clock().UTC(),
	}
	if first, found, err := h.createdBefore(ctx, *key); found || err != nil {
		return first, err
	}
	return h.create(ctx, spec, options, key, began)
}

// create makes the sandbox of a spec that is valid, or begins with a snapshot. key is the
// request's, nil without one; began is when the request came.
func (h *Host) create(
	ctx context.Context, spec lifecycle.Spec, options lifecycle.CreateOptions,
	key *lifecycle.IdempotencyKey, began time.Time,
) (lifecycle.Sandbox, error) {
	spec, snapshot, begun, err := h.complete(spec, options)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	defer begun()
	if err := options.Bounds.Apply(&spec); err != nil {
		return lifecycle.Sandbox{}, err
	}
	if err := h.checkLifecycle(spec.Lifecycle); err != nil {
		return lifecycle.Sandbox{}, err
	}
	if err := h.options.Boxes.Admit(ctx, spec, options); err != nil {
		return lifecycle.Sandbox{}, err
	}
	record := h.newRecord(spec, options)
	record.EngineImage, record.ParentSandbox = snapshot.EngineImage, snapshot.SandboxID
	done, err := h.quota.Take(lifecycle.Request{
		ID: record.Sandbox.ID, Owner: options.Owner, Limits: record.Sandbox.Limits,
		MaxSandboxes: options.MaxSandboxes, Bounds: options.Bounds,
	}, h.registry.sandboxes())
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	defer done()
	if record.HostNetwork {
		h.slot.Lock()
		defer h.slot.Unlock()
		if err := h.slotFree(); err != nil {
			return lifecycle.Sandbox{}, err
		}
	}
	if key != nil {
		key.SandboxID = record.Sandbox.ID
	}
	took := options.Took
	if took == nil {
		took = func(string, time.Duration) {}
	}
	validated := h.options.Clock()
	took("validate", validated.Sub(began))
	accepted, _ := record.Sandbox.Reach(lifecycle.StageAccepted, record.Sandbox.CreatedAt)
	events := []lifecycle.Event{stateEvent("", record.Sandbox), accepted}
	if err := h.options.Store.Insert(ctx, record, key, events...); err != nil {
		return lifecycle.Sandbox{}, fmt.Errorf("save the new sandbox: %w", err)
	}
	durable := h.options.Clock()
	took("durable", durable.Sub(validated))
	h.options.Observer.StageDone(lifecycle.StageAccepted, durable.Sub(began))
	h.accept(record, spec.Auth, events)
	return record.Sandbox, nil
}

// accept starts the actor of a new record, which is saved with these events.
func (h *Host) accept(
	record lifecycle.Record, auth *lifecycle.ImageAuth, events []lifecycle.Event,
) {
	sandbox := record.Sandbox
	h.options.Observer.StateChanged(sandbox.Status.State, sandbox.Status.Reason)
	a := h.spawn(record, auth, true)
	h.notifier.notify(events)
	a.log.Info().
		Str("image", sandbox.Image).
		Str("owner", sandbox.Owner).
		Time("expires_at", sandbox.ExpiresAt).
		Msg("sandbox accepted")
}

// createdBefore returns the sandbox that an earlier request with this key created.
func (h *Host) createdBefore(
	ctx context.Context, key lifecycle.IdempotencyKey,
) (lifecycle.Sandbox, bool, error) {
	earlier, found, err := h.options.Store.FindKey(ctx, key.Owner, key.Key,
		h.options.Clock().Add(-lifecycle.IdempotencyWindow))
	if err != nil || !found {
		return lifecycle.Sandbox{}, false, err
	}
	if earlier.Digest != key.Digest {
		return lifecycle.Sandbox{}, false, lifecycle.Conflictf(
			"Idempotency-Key: %q was used with another request body", key.Key)
	}
	sandbox, err := h.Get(ctx, earlier.SandboxID)
	if err != nil {
		return lifecycle.Sandbox{}, false, lifecycle.Conflictf(
			"Idempotency-Key: the sandbox %s that %q created is gone", earlier.SandboxID, key.Key)
	}
	return sandbox, true, nil
}

func (h *Host) newRecord(spec lifecycle.Spec, options lifecycle.CreateOptions) lifecycle.Record {
	now := h.options.Clock().UTC()
	needsAuth := spec.Auth != nil
	limits, _ := spec.Resources.Parse() // Validate has
	spec.Auth = nil                     // the actor has them, for the pull alone
	if spec.ImageEntrypoint {
		spec.Entrypoint = []string{lifecycle.DaemonPath + "/execd-init"} // until the image is there
	}
	record := lifecycle.Record{
		Sandbox: lifecycle.Sandbox{
			ID:         uuid.NewString(),
			Image:      spec.Image,
			Metadata:   spec.Metadata,
			Entrypoint: spec.Entrypoint,
			CreatedAt:  now,
			ExpiresAt:  wall(now.Add(spec.Timeout)),
			Owner:      options.Owner,
			Extensions: spec.Extensions,
			Limits:     limits,

			RuntimeClass: spec.RuntimeClass,
			SnapshotID:   spec.SnapshotID,
			Lifecycle:    spec.Lifecycle,
			Status: lifecycle.Status{
				State:            lifecycle.StatePending,
				Reason:           lifecycle.ReasonProvisioning,
				Message:          "accepted",
				LastTransitionAt: now,
			},
		},
		Spec:      withoutCopies(spec),
		ByAdmin:   options.Role == lifecycle.RoleAdmin,
		NeedsAuth: needsAuth,
		Token:     lifecycle.NewToken(),

		MaxTimeout: options.Bounds.MaxTimeout,
	}.Clone()
	h.options.Boxes.Assign(&record)
	return record
}

// withoutCopies returns the spec without what its sandbox has, too. That may have a MiB, and a
// record is written as a whole at each change.
func withoutCopies(spec lifecycle.Spec) lifecycle.Spec {
	spec.Image, spec.Metadata, spec.Entrypoint, spec.Extensions = "", nil, nil, nil
	spec.Lifecycle = nil
	return spec
}

// Delete implements lifecycle.Backend.
func (h *Host) Delete(ctx context.Context, id string) error {
	a, err := h.registry.get(id)
	if err != nil {
		return err
	}
	return a.do(ctx, func() error {
		switch state := a.state(); {
		case state == lifecycle.StateStopping:
			return nil
		case state.Final():
			return lifecycle.Conflictf(
				"cannot delete: the sandbox is %s already; its record is kept until %s", state,
				a.record.RetainUntil.Format(time.RFC3339))
		}
		if err := a.request(
			lifecycle.TriggerDelete, lifecycle.ReasonUserDelete, "deleted by a client",
		); err != nil {
			return err
		}
		a.cancelJob()
		return nil
	})
}

// Pause implements lifecycle.Backend.
func (h *Host) Pause(ctx context.Context, id string) error {
	if kept, err := h.pauseAsleep(ctx, id); kept || err != nil {
		return err
	}
	return h.toggle(ctx, id, lifecycle.StateRunning, lifecycle.TriggerPause,
		lifecycle.ReasonUserPause)
}

// Resume implements lifecycle.Backend.
func (h *Host) Resume(ctx context.Context, id string) error {
	if woken, err := h.resumeAsleep(ctx, id); woken || err != nil {
		return err
	}
	return h.toggle(ctx, id, lifecycle.StatePaused, lifecycle.TriggerResume,
		lifecycle.ReasonUserResume)
}

func (h *Host) toggle(
	ctx context.Context, id string, from lifecycle.State, trigger lifecycle.Trigger,
	reason lifecycle.Reason,
) error {
	a, err := h.registry.get(id)
	if err != nil {
		return err
	}
	var during lifecycle.State
	err = a.do(ctx, func() error {
		if state := a.state(); state != from {
			return state.Conflict(string(trigger), from)
		}
		err := a.request(trigger, reason, string(trigger)+"d by a client") // paused, resumed
		during = a.state()
		return err
	})
	if err != nil {
		return err
	}
	a.await(ctx, actTimeout,
		func(r *lifecycle.Record) bool { return r.Sandbox.Status.State != during })
	return nil
}

// Renew implements lifecycle.Backend.
func (h *Host) Renew(ctx context.Context, id string, expiresAt time.Time) (time.Time, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return time.Time{}, err
	}
	expiresAt = expiresAt.UTC()
	err = a.do(ctx, func() error {
		if err := a.state().CheckRenewable(); err != nil {
			return err
		}
		if err := lifecycle.CheckRenewal(
			h.options.Clock(), a.record.Sandbox.ExpiresAt, expiresAt,
		); err != nil {
			return err
		}
		record := a.record
		// A sandbox whose time was up has the time that the client gives it now, also once it is
		// woken.
		record.Sandbox.ExpiresAt, record.TimedOut = expiresAt, false
		event := a.event(lifecycle.EventRenewed)
		event.ExpiresAt = expiresAt
		return a.commit(synced, record, event)
	})
	return expiresAt, err
}

// UpdateMetadata implements lifecycle.Backend.
func (h *Host) UpdateMetadata(
	ctx context.Context, id string, patch map[string]*string,
) (map[string]string, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return nil, err
	}
	var merged map[string]string
	err = a.do(ctx, func() (err error) {
		if state := a.state(); state.Final() {
			return lifecycle.Conflictf("cannot change the metadata: the sandbox is %s", state)
		}
		if merged, err = lifecycle.MergeMetadata(a.record.Sandbox.Metadata, patch); err != nil {
			return err
		}
		if maps.Equal(merged, a.record.Sandbox.Metadata) {
			return nil
		}
		record := a.record
		record.Sandbox.Metadata = merged
		event := a.event(lifecycle.EventMetadata)
		event.Metadata, event.Removed = lifecycle.DiffMetadata(a.record.Sandbox.Metadata, merged)
		return a.commit(synced, record, event)
	})
	return maps.Clone(merged), err
}

// AwaitStable implements lifecycle.Backend.
func (h *Host) AwaitStable(
	ctx context.Context, id string, atMost time.Duration,
) (lifecycle.Sandbox, error) {
	a, err := h.registry.get(id)
	if err != nil {
		return lifecycle.Sandbox{}, err
	}
	record := a.await(ctx, atMost,
		func(r *lifecycle.Record) bool { return !r.Sandbox.Status.State.Transient() })
	return record.Sandbox, nil
}
