package containers

import (
	"context"
	"fmt"
	"maps"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/keeper"
)

// KilledExitCode is the exit code of a process that was killed with SIGKILL.
const KilledExitCode = 128 + 9

// Container is what the service has of one container.
type Container struct {
	ID, Name  string
	Directory layout.Container

	registry *Registry
	// lock holds one token while a caller starts, freezes, thaws or removes the container. It is
	// not held while the container's end is awaited, except by a removal.
	lock chan struct{}
	// gone is closed when there is no record any more.
	gone chan struct{}

	// The Registry's mu guards the fields below. Only the holder of the lock changes record.
	record Record
	// ended is closed when the first process has ended and its output is in the log. One that is
	// started again gets a new channel.
	ended    chan struct{}
	frozen   bool
	removing bool
	end      *keeper.End // nil until the first process has ended
	oom      bool        // the kernel ended it for its memory; set before end
	// filesLost says why its files are of no use after a reboot; empty when they are, or need not
	// be.
	filesLost string
	// overNetlink is set when the service ends it for the memory of its netlink sockets.
	overNetlink bool
	// early is an end that the keeper reported before the start was recorded.
	early *keeper.End
	// disk is the file system for its writes, where these are bounded and it has not ended.
	disk *disk.Disk
}

// Lock waits until no other caller starts, freezes, thaws or removes the container. The caller
// calls Unlock.
func (c *Container) Lock(ctx context.Context) error {
	select {
	case c.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock ends what Lock began.
func (c *Container) Unlock() { <-c.lock }

// Ended returns a channel that is closed when the first process, of the present start, has ended
// and its output is in the log.
func (c *Container) Ended() <-chan struct{} {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return c.ended
}

// Gone returns a channel that is closed when the container was removed.
func (c *Container) Gone() <-chan struct{} { return c.gone }

// Record returns the container's record. Only the holder of the lock changes it.
func (c *Container) Record() Record {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return c.record
}

// Update changes the record, in memory once it is on the disk. The caller holds the lock.
func (c *Container) Update(change func(*Record)) error {
	next := c.Record()
	if next.Run != nil {
		run := *next.Run
		next.Run = &run
	}
	change(&next)
	if err := next.write(c.Directory); err != nil {
		return fmt.Errorf("write the record of container %s: %w", c.Name, err)
	}
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.record = next
	return nil
}

// Status returns what the container does.
func (c *Container) Status() engine.Status {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return c.status()
}

// status returns what the container does. The Registry's mu is held.
func (c *Container) status() engine.Status {
	switch {
	case c.removing:
		return engine.StatusRemoving
	case c.record.Stopped:
		return engine.StatusStopped
	case !c.record.Started():
		return engine.StatusCreated
	case c.end != nil:
		return engine.StatusExited
	case c.frozen:
		return engine.StatusFrozen
	}
	return engine.StatusRunning
}

// Alive reports whether the container runs or is frozen.
func (c *Container) Alive() bool { return alive(c.Status()) }

func alive(s engine.Status) bool { return s == engine.StatusRunning || s == engine.StatusFrozen }

// Describe returns what Inspect and List show.
func (c *Container) Describe() engine.Container {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return c.describe()
}

// describe is Describe. The Registry's mu is held.
func (c *Container) describe() engine.Container {
	d := engine.Container{
		ID: c.ID, Name: c.Name, Labels: maps.Clone(c.record.Spec.Labels), Status: c.status(),
		Ports: map[int]int{}, Error: c.record.StartError, Restored: c.record.Restored, RestoreError: c.record.RestoreError,
	}
	if run := c.record.Run; alive(d.Status) && run.Network != nil {
		maps.Copy(d.Ports, run.Network.Ports)
	}
	if c.end != nil {
		d.ExitCode, d.OOMKilled, d.FilesLost = ExitCode(*c.end), c.oom || c.overNetlink, c.filesLost
	}
	return d
}

// ExitCode is what a shell would show of an end.
func ExitCode(end keeper.End) int {
	if end.Signal != 0 {
		return 128 + end.Signal
	}
	return end.ExitCode
}

// SetStarted records the first process, and returns the end that was reported before that; nil when
// there is none. The caller holds the lock.
func (c *Container) SetStarted(process keeper.Process) (early *keeper.End, err error) {
	err = c.Update(func(r *Record) {
		r.Run.Process, r.Stopped, r.Fresh = process, false, false
		r.Restored = r.Restore != "" || r.Memory != nil
		r.Restore, r.Memory = "", nil
	})
	if err != nil {
		return nil, err
	}
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	early, c.early = c.early, nil
	c.registry.emit(c, engine.EventStarted)
	return early, nil
}

// DropEarlyEnd forgets an end that was reported before the start was recorded: it is not the end of
// what another start makes.
func (c *Container) DropEarlyEnd() {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.early = nil
}

// SetEnded records in memory that the first process has ended; the keeper has done it on the disk.
// It returns false when that is known already. oom is set when the kernel ended the process for its
// memory. The caller closes the file system for the container's writes, which is nil where there is
// none: another start has another one.
func (c *Container) SetEnded(end keeper.End, oom bool) (taken *disk.Disk, ok bool) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	if c.end != nil {
		return nil, false
	}
	c.end, c.oom, c.frozen = &end, oom, false
	taken, c.disk = c.disk, nil
	close(c.ended)
	c.registry.emit(c, engine.EventExited)
	return taken, true
}

// HasEnded reports whether the first process has ended.
func (c *Container) HasEnded() bool {
	select {
	case <-c.Ended():
		return true
	default:
		return false
	}
}

// SetStopped makes a container whose processes are gone, and whose files are kept, one that can be
// started again. The remains of the last start are still to be released. The container is so in
// memory also when the record cannot be written, and then the next service does this again. The
// caller holds the lock, or is the only one that has the container.
func (c *Container) SetStopped() error {
	next := c.stopped()
	err := next.write(c.Directory)
	c.becomeStopped(next)
	if err != nil {
		return fmt.Errorf("write the record of container %s: %w", c.Name, err)
	}
	return nil
}

// PrepareRollback writes the record of the container as one that can be started again on the
// snapshots of base, without what it has written, beside the present one; with the processes of the
// snapshot restore, where that is not empty. The call of commit, once
// the container's processes are gone, makes that the record, and needs no room on the disk. The
// remains of the last start, and what the container has written, are still to be released. After an
// error nothing has changed. The caller holds the lock.
func (c *Container) PrepareRollback(base []string, restore string) (commit func() error, err error) {
	next := c.stopped()
	next.Base, next.Fresh, next.Volatile, next.Source, next.StartError = base, true, false, "", ""
	next.Restore, next.Memory = restore, nil
	replace, err := next.prepare(c.Directory, ".rollback")
	if err != nil {
		return nil, fmt.Errorf("write the record of container %s: %w", c.Name, err)
	}
	return func() error {
		if err := replace(); err != nil {
			return fmt.Errorf("replace the record of container %s: %w", c.Name, err)
		}
		c.becomeStopped(next)
		return nil
	}, nil
}

// stopped returns the record of the container once it is stopped.
func (c *Container) stopped() Record {
	next := c.Record()
	if next.Run != nil {
		run := *next.Run
		run.Process, run.GPUs = keeper.Process{}, nil
		next.Run = &run
	}
	next.Stopped, next.Restored, next.RestoreError = true, false, ""
	return next
}

// becomeStopped has the container be as the record says, in memory.
func (c *Container) becomeStopped(next Record) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.record, c.frozen, c.oom, c.overNetlink, c.early = next, false, false, false, nil
	if c.end != nil {
		c.end, c.ended = nil, make(chan struct{})
	}
}

// SetFilesLost says why the files of a container that is about to be recorded as ended are of no
// use after a reboot.
func (c *Container) SetFilesLost(reason string) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.filesLost = reason
}

// SetOverNetlink marks a container that the service is about to end for the memory of its netlink
// sockets.
func (c *Container) SetOverNetlink() {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.overNetlink = true
}

// Frozen reports whether the container is frozen.
func (c *Container) Frozen() bool { return c.Status() == engine.StatusFrozen }

// SetFrozen records whether a container that has not ended is frozen, and reports the change to
// watchers. The caller holds the lock.
func (c *Container) SetFrozen(frozen bool) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	if c.end != nil || c.frozen == frozen {
		return
	}
	c.frozen = frozen
	if frozen {
		c.registry.emit(c, engine.EventFrozen)
	} else {
		c.registry.emit(c, engine.EventThawed)
	}
}

// SetRemoving has the container shown as one that is being removed. The caller holds the lock.
func (c *Container) SetRemoving() {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.removing = true
}

// Disk returns the file system for the container's writes; nil where these are not bounded, and
// once it was taken.
func (c *Container) Disk() *disk.Disk {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	return c.disk
}

// SetDisk sets the file system for the container's writes.
func (c *Container) SetDisk(d *disk.Disk) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	c.disk = d
}

// TakeDisk returns what Disk does, for the caller to close.
func (c *Container) TakeDisk() *disk.Disk {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	taken := c.disk
	c.disk = nil
	return taken
}

// Watched is what the keeper needs about a container that runs. The exit file of a container
// without one is missing.
func (c *Container) Watched() keeper.Watched {
	return keeper.Watched{
		ID: c.ID, Output: c.Directory.Output(), Log: c.Directory.Log(), LogBytes: c.Record().Spec.LogBytes,
		ExitFile: c.Directory.Exit(), EndFile: c.Directory.End(),
	}
}
