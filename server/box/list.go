package box

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Labels are on every container of the service with this instance.
func Labels(instance string) map[string]string { return map[string]string{labelInstance: instance} }

func (c *Containers) ours() map[string]string { return Labels(c.options.Instance) }

// List returns every box of this service that the engine has, and what is left of others, but for
// networks that were made ahead.
func (c *Containers) List(ctx context.Context) ([]lifecycle.BoxListing, error) {
	spares := c.spares.Boxes()
	containers, err := c.options.Engine.List(ctx, c.ours())
	if err != nil {
		return nil, translated(err)
	}
	spares = append(spares, c.spares.Boxes()...) // those that were made meanwhile
	var boxes []lifecycle.BoxListing
	at := map[string]int{} // index in boxes, by identity
	for _, container := range containers {
		id := boxOf(container)
		if slices.Contains(spares, id) || !isPart(container.Name, id) {
			continue
		}
		i, known := at[id]
		if !known || id == "" {
			i = len(boxes)
			boxes = append(boxes, lifecycle.BoxListing{ID: id, Rebuild: func() *lifecycle.Record { return nil }})
			at[id] = i
		}
		box := &boxes[i]
		box.Parts = append(box.Parts, container.Name)
		if id != "" && container.Name != containerName(id) {
			box.Network = statusOf(container)
			continue
		}
		box.Status, box.Rebuild = statusOf(container), func() *lifecycle.Record { return recordOf(container) }
	}
	return boxes, nil
}

// boxOf returns the identity of the box that a container belongs to. Containers of a service before
// identities have their sandbox's id.
func boxOf(container engine.Container) string {
	return cmp.Or(container.Labels[labelBox], container.Labels[labelID])
}

// isPart reports whether a container of that name can belong to the box. The labels do not say so:
// an image passes them on, so that what another program makes of a sandbox's image has them, too.
func isPart(name, box string) bool {
	return box == "" || name == containerName(box) || name == sidecarName(box) || name == holderName(box)
}

// recordOf rebuilds the record of a container that is alive, or can be started again; nil when that
// is not possible.
func recordOf(container engine.Container) *lifecycle.Record {
	record, err := decodeRecord(container.Labels[labelRecord])
	if err != nil || record.Sandbox.ID != container.Labels[labelID] {
		return nil
	}
	status := &record.Sandbox.Status
	switch container.Status {
	case engine.StatusRunning:
		status.State = lifecycle.StatePending
	case engine.StatusFrozen:
		status.State = lifecycle.StatePaused
	case engine.StatusStopped:
		status.State, record.Stopped = lifecycle.StatePaused, true
	default:
		return nil
	}
	status.Reason, status.Message = lifecycle.ReasonProvisioning, "rebuilt from its container: the record was lost"
	if record.Stopped {
		status.Reason, status.Message = lifecycle.ReasonHostRebooted, lifecycle.HostRebooted
	}
	record.Box = boxOf(container)
	record.Port = portOf(container, record.HostNetwork)
	record.Sandbox.Stages = nil // the label has only those before the container was made
	return &record
}

// Discard removes what List returned.
func (c *Containers) Discard(ctx context.Context, box lifecycle.BoxListing) error {
	var errs []error
	for _, name := range box.Parts {
		errs = append(errs, c.options.Engine.Remove(ctx, name))
	}
	return translated(errors.Join(errs...))
}

// Watch calls handle, one call at a time, for what happens to boxes, by their identity, until ctx
// ends or the engine closes the connection. It calls ready once nothing will be missed.
func (c *Containers) Watch(ctx context.Context, ready func(), handle func(id string, event lifecycle.BoxEvent)) error {
	events := map[engine.EventType]lifecycle.BoxEvent{
		engine.EventStarted: lifecycle.BoxEventStarted,
		engine.EventFrozen:  lifecycle.BoxEventFrozen,
		engine.EventThawed:  lifecycle.BoxEventThawed,
	}
	subscribed := func() {
		c.spares.Replace() // they may have ended before
		ready()
	}
	return c.options.Engine.Watch(ctx, c.ours(), subscribed, func(event engine.Event) {
		id := cmp.Or(event.Labels[labelBox], event.Labels[labelID])
		what, known := events[event.Type]
		if !known {
			what = lifecycle.BoxEventEnded
			c.spares.Ended(id)
		}
		handle(id, what)
	})
}
