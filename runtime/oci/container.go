package oci

import (
	"context"
	"fmt"
	"maps"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/keeper"
)

// killedExitCode is the exit code of a process that was killed with SIGKILL.
const killedExitCode = 128 + 9

// container is what the service has of one container.
type container struct {
	id, name string
	at       containerFolder
	// turn holds one token: whoever has it starts, freezes, thaws or removes the container. It is not held while the container's end is
	// awaited, except by a removal.
	turn chan struct{}
	// ended is closed when the first process has ended and everything that it wrote is in the log; gone when there is no record any more.
	ended, gone chan struct{}

	// The fields below are guarded by the Engine's mu. Only the holder of the turn changes record, and may read it without mu.
	record   record
	frozen   bool
	removing bool
	end      *keeper.End // nil until the first process has ended
	oom      bool        // the kernel ended it for its memory; set before end
	// hoarded is whether it was ended for what its sockets held (see boundNetlink).
	hoarded bool
	// early is an end that the keeper reported before Launch had returned.
	early *keeper.End
	// disk is what it writes to, where that is bounded and it has not ended.
	disk *disk.Disk
}

func newContainer(at containerFolder, r record) *container {
	return &container{
		id: r.ID, name: r.Spec.Name, at: at, record: r, turn: make(chan struct{}, 1), ended: make(chan struct{}), gone: make(chan struct{}),
	}
}

// take waits for the container's turn.
func (c *container) take(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *container) release() { <-c.turn }

// status returns what the container does. The Engine's mu is held.
func (c *container) status() engine.Status {
	switch {
	case c.removing:
		return engine.StatusRemoving
	case c.record.Run == nil || c.record.Run.Process.PID == 0:
		return engine.StatusCreated
	case c.end != nil:
		return engine.StatusExited
	case c.frozen:
		return engine.StatusFrozen
	}
	return engine.StatusRunning
}

// describe returns what Inspect and List show. The Engine's mu is held.
func (c *container) describe() engine.Container {
	d := engine.Container{
		ID: c.id, Name: c.name, Labels: maps.Clone(c.record.Spec.Labels), Status: c.status(),
		Ports: map[int]int{}, Error: c.record.StartError,
	}
	alive := d.Status == engine.StatusRunning || d.Status == engine.StatusFrozen
	if run := c.record.Run; alive && run.Network != nil {
		maps.Copy(d.Ports, run.Network.Ports)
	}
	if c.end != nil {
		d.ExitCode, d.OOMKilled = exitCode(*c.end), c.oom || c.hoarded
	}
	return d
}

// exitCode is what a shell would show of an end.
func exitCode(end keeper.End) int {
	if end.Signal != 0 {
		return 128 + end.Signal
	}
	return end.ExitCode
}

// find returns a container by its id or name.
func (e *Engine) find(op, id string) (*container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.Err() != nil {
		return nil, closedError(op)
	}
	if c := e.byID[id]; c != nil {
		return c, nil
	}
	if c := e.byName[id]; c != nil && e.byID[c.id] == c {
		return c, nil
	}
	return nil, fmt.Errorf("%s: %w: %s", op, engine.ErrNotFound, id)
}

// hold finds a container and waits for its turn. The caller releases it.
func (e *Engine) hold(ctx context.Context, op, id string) (*container, error) {
	c, err := e.find(op, id)
	if err != nil {
		return nil, err
	}
	if err := c.take(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	select {
	case <-c.gone:
		c.release()
		return nil, fmt.Errorf("%s: %w: %s", op, engine.ErrNotFound, id)
	default:
		return c, nil
	}
}

// update changes the record of a container, in memory when it is on the disk. The caller holds the turn.
func (e *Engine) update(c *container, change func(*record)) error {
	e.mu.Lock()
	next := c.record
	e.mu.Unlock()
	if next.Run != nil {
		run := *next.Run
		next.Run = &run
	}
	change(&next)
	if err := next.write(c.at); err != nil {
		return fmt.Errorf("write the record of container %s: %w", next.Spec.Name, err)
	}
	e.mu.Lock()
	c.record = next
	e.mu.Unlock()
	return nil
}

// Inspect implements [engine.Engine].
func (e *Engine) Inspect(_ context.Context, id string) (engine.Container, error) {
	c, err := e.find("inspect container", id)
	if err != nil {
		return engine.Container{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.describe(), nil
}

// List implements [engine.Engine].
func (e *Engine) List(_ context.Context, labels map[string]string) ([]engine.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.Err() != nil {
		return nil, closedError("list containers")
	}
	found := []engine.Container{}
	for _, c := range e.byID {
		if carries(c.record.Spec.Labels, labels) {
			found = append(found, c.describe())
		}
	}
	return found, nil
}

// carries reports whether all the wanted labels are among those that something has.
func carries(has, wanted map[string]string) bool {
	for name, value := range wanted {
		if got, ok := has[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// imagesInUse returns the ids of the images that containers are made of.
func (e *Engine) imagesInUse() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range e.byName { // also those that are being created
		if !c.record.isTrial() { // which has no image
			seen[c.record.Spec.ImageID] = true
		}
	}
	ids := make([]string, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	return ids
}

// exited is called by the keeper, once per end.
func (e *Engine) exited(id string, end keeper.End) {
	e.mu.Lock()
	c := e.byID[id]
	early := c != nil && (c.record.Run == nil || c.record.Run.Process.PID == 0)
	if early {
		c.early = &end
	}
	e.mu.Unlock()
	if c == nil || early {
		return // Start, or recovery, takes care of it
	}
	e.noteEnd(c, end)
}

// noteEnd records in memory that a container has ended; the keeper has done it on the disk.
func (e *Engine) noteEnd(c *container, end keeper.End) {
	oom := e.diedOfMemory(c, end)
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.end != nil {
		return
	}
	c.end, c.oom, c.frozen = &end, oom, false
	close(c.ended)
	e.emit(c, engine.EventExited)
	if c.disk != nil && e.closing.Err() == nil {
		e.background.Go(func() { e.dropDisk(c) })
	}
	if c.record.Run.Network != nil && e.networkReady && e.closing.Err() == nil {
		id := c.id
		e.background.Go(func() { e.detach(id) })
	}
}

// diedOfMemory reports whether the kernel killed the container's first process for its memory: it was killed, and the control group has
// counted such a kill. The count is final before the signal is sent.
func (e *Engine) diedOfMemory(c *container, end keeper.End) bool {
	if exitCode(end) != killedExitCode {
		return false
	}
	kills, err := e.cgroups.Group(c.id).OOMKills()
	if err != nil {
		e.log.Warn().Err(err).Str("container", c.name).Msg("whether it ran out of memory cannot be read")
	}
	return kills > 0
}

// detach closes the published ports of a container that has ended. The kernel removes its network by itself.
func (e *Engine) detach(id string) {
	if err := e.network.Detach(id); err != nil {
		e.log.Warn().Err(err).Str("container_id", id).Msg("its network cannot be released yet; the removal tries again")
	}
}

// now is a time as it comes back from a record.
func now() time.Time { return time.Now().UTC().Round(0) }
