package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// messageLogLines is how many of the last lines of a log a message carries.
const messageLogLines = 20

// Inspect returns the condition of a box. It returns [lifecycle.ErrNoBox],
// [lifecycle.ErrBoxUnavailable], and a *[lifecycle.BoxFailure] for a box that is of no use any more
// although its container lives.
func (c *Containers) Inspect(ctx context.Context, record lifecycle.Record) (lifecycle.BoxCondition, error) {
	select {
	case c.inspections <- struct{}{}:
		defer func() { <-c.inspections }()
	case <-ctx.Done():
		return lifecycle.BoxCondition{}, ctx.Err()
	}
	box, err := c.inspect(ctx, &record)
	return box, translated(err)
}

// inspect is Inspect with the engine's errors, for as many callers as there are.
func (c *Containers) inspect(ctx context.Context, record *lifecycle.Record) (lifecycle.BoxCondition, error) {
	name := containerName(record.Box)
	container, err := c.options.Engine.Inspect(ctx, name)
	if err != nil {
		return lifecycle.BoxCondition{}, err
	}
	box := lifecycle.BoxCondition{Status: statusOf(container)}
	switch container.Status {
	case engine.StatusRemoving:
		return lifecycle.BoxCondition{}, fmt.Errorf("%w: it is being removed", engine.ErrNotFound)
	case engine.StatusCreated:
		box.Exit = &lifecycle.BoxExit{NeverStarted: true, StartError: container.Error}
		return box, nil
	case engine.StatusStopped:
		return box, nil
	case engine.StatusExited:
		if container.FilesLost != "" {
			return box, lifecycle.BoxFailuref(lifecycle.ReasonFilesLost,
				"the host was started again, and the files of the sandbox cannot be used: %s", container.FilesLost)
		}
		if record.Stopped { // a restart that has failed
			box.Status = lifecycle.BoxStopped
			return box, nil
		}
		box.Exit = &lifecycle.BoxExit{Code: container.ExitCode, OOMKilled: container.OOMKilled, Log: c.lastLines(ctx, name)}
		return box, nil
	}
	box.Place.Port = portOf(container, record.HostNetwork)
	if owner, _ := networkOwner(*record); owner == "" {
		return box, nil
	}
	network, err := c.ensureNetworkRuns(ctx, *record)
	if err != nil {
		return lifecycle.BoxCondition{}, err
	}
	// The owner of the network publishes the ports of both.
	box.Place = lifecycle.Place{Port: network.Ports[lifecycle.DaemonPort], SidecarPort: network.Ports[lifecycle.SidecarPort]}
	return box, nil
}

// alive reports whether a container runs or is frozen.
func alive(container engine.Container) bool {
	status := statusOf(container)
	return status == lifecycle.BoxRunning || status == lifecycle.BoxFrozen
}

// statusOf returns a container's condition as a box's.
func statusOf(container engine.Container) lifecycle.BoxStatus {
	switch container.Status {
	case engine.StatusRunning:
		return lifecycle.BoxRunning
	case engine.StatusFrozen:
		return lifecycle.BoxFrozen
	case engine.StatusStopped:
		return lifecycle.BoxStopped
	}
	return lifecycle.BoxEnded
}

// Freeze stops the sandbox's processes from running, memory retained; Thaw lets them run again.
// Freezing a frozen box and thawing a running one succeed. They return [lifecycle.ErrNoBox] or
// [lifecycle.ErrBoxNotAlive] when there is nothing to act on.
func (c *Containers) Freeze(ctx context.Context, record lifecycle.Record) error {
	return c.act(ctx, record, c.options.Engine.Freeze)
}

// Thaw is described at Freeze.
func (c *Containers) Thaw(ctx context.Context, record lifecycle.Record) error {
	return c.act(ctx, record, c.options.Engine.Thaw)
}

func (c *Containers) act(ctx context.Context, record lifecycle.Record, do func(context.Context, string) error) error {
	name := containerName(record.Box)
	err := do(ctx, name)
	if !errors.Is(err, engine.ErrNotFound) && !errors.Is(err, engine.ErrNotRunning) {
		return translated(err)
	}
	if container, again := c.options.Engine.Inspect(ctx, name); again == nil && alive(container) {
		// The engine contradicts itself. Taken at its word it would be asked again at once, and for
		// ever.
		return fmt.Errorf("the container is running, but the engine answered: %v", err)
	}
	return translated(err)
}

// Stop asks the entrypoint to end, which is killed after a short grace. Open streams of execd get
// their last events. Stopping a box that does not run, or is gone, succeeds.
func (c *Containers) Stop(ctx context.Context, record lifecycle.Record) error {
	return translated(c.options.Engine.Stop(ctx, containerName(record.Box), cmp.Or(record.StopTime, stopGrace)))
}

// Remove removes everything of the box, its containers concurrently. Removing a missing box
// succeeds.
func (c *Containers) Remove(ctx context.Context, record lifecycle.Record) error {
	defer c.spares.Begin()()
	c.spares.Claim(record.Box)
	var group sync.WaitGroup
	var network error
	// Nothing of the sandbox passes any more once the owner of its network has ended.
	group.Go(func() { network = c.removeNetwork(ctx, record) })
	err := c.options.Engine.Remove(ctx, containerName(record.Box))
	group.Wait()
	if err != nil {
		return translated(err)
	}
	return network
}

// removeNetwork removes the container that owns the record's network, where that is not the
// sandbox's own.
func (c *Containers) removeNetwork(ctx context.Context, record lifecycle.Record) error {
	name, title := networkOwner(record)
	if name == "" {
		return nil
	}
	if err := c.options.Engine.Remove(ctx, name); err != nil {
		return fmt.Errorf("%s: %w", title, translated(err))
	}
	return nil
}

// OpenLog returns what the entrypoint printed, standard output and error combined. Reading ends
// with ctx; the caller closes it. It returns [lifecycle.ErrNoBox] and
// [lifecycle.ErrBoxUnavailable].
func (c *Containers) OpenLog(ctx context.Context, record lifecycle.Record, options lifecycle.LogOptions) (io.ReadCloser, error) {
	selected := engine.LogOptions{Tail: -1, Since: options.Since, Follow: options.Follow}
	if options.Tail != nil {
		selected.Tail = *options.Tail
	}
	log, err := c.options.Engine.OpenLog(ctx, containerName(record.Box), selected)
	return log, translated(err)
}

// lastLines returns the end of a container's log for a message, empty when there is none.
func (c *Containers) lastLines(ctx context.Context, container string) string {
	text, err := c.options.Engine.Logs(ctx, container, messageLogLines)
	if err != nil {
		return ""
	}
	return text
}
