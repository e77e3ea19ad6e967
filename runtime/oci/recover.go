package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// keeperGroup is the control group of the keeper itself, next to those of the containers, whose
// names are hexadecimal.
const keeperGroup = "keeper"

// recovery takes over what an earlier service has left.
type recovery struct{ *launcher }

// adoptRunning finds out which containers run and which have ended, and returns what the running
// ones have of the network.
func (r recovery) adoptRunning(ctx context.Context) (inUse []network.Attachment, err error) {
	var running []keeper.Running
	var rebooted []*containers.Container
	attached, err := disk.FindAttached()
	if err != nil {
		return nil, fmt.Errorf("file systems of containers: %w", err)
	}
	for _, c := range r.containers.All() {
		record := c.Record()
		if !record.Started() {
			continue // its remains are removed later
		}
		if end, err := keeper.ReadEnd(c.Directory.End()); err == nil {
			r.ends.record(c, end)
			continue
		}
		if record.Run.BootID != r.bootID {
			rebooted = append(rebooted, c)
			continue
		}
		r.disks.adopt(c, attached)
		r.thawHeld(ctx, c)
		frozen, err := r.processes.frozen(ctx, c)
		if err != nil {
			r.log.Warn().Err(err).Str("container", c.Name).Msg("cannot read the freezer state of container")
		}
		c.SetFrozen(frozen)
		if !frozen && err == nil && record.Memory != nil { // another process has thawed it
			if err := r.forgetMemory(c); err != nil {
				return nil, fmt.Errorf("container %s: forget its memory: %w", c.Name, err)
			}
		}
		r.processors.Adopt(c.ID, r.cgroups.Group(c.ID).Processors(), record.Spec.Resources.NanoCPUs)
		running = append(running, keeper.Running{Watched: c.Watched(), Process: record.Run.Process})
		if record.Run.Network != nil {
			inUse = append(inUse, *record.Run.Network)
		}
	}
	r.afterReboot(rebooted)
	if err := r.keeper.Adopt(ctx, running); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return inUse, nil
}

// keptPorts returns the ports that containers had published which can be started again, and do not
// run.
func (r recovery) keptPorts() (kept []network.Attachment) {
	for _, c := range r.containers.All() {
		record := c.Record()
		if record.Published != nil && !c.Alive() && keepsPorts(&record) {
			kept = append(kept, *record.Published)
		}
	}
	return kept
}

// thawHeld lets the processes of a container run that a snapshot kept from it when the service was
// killed.
func (r recovery) thawHeld(ctx context.Context, c *containers.Container) {
	if _, err := os.Lstat(c.Directory.Held()); errors.Is(err, os.ErrNotExist) {
		return
	}
	err := r.processes.resume(ctx, c)
	if err == nil {
		err = os.Remove(c.Directory.Held())
	}
	if err != nil {
		r.log.Error().Err(err).Str("container", c.Name).Msg("cannot thaw a container that a snapshot has frozen; retried at service start")
	}
}

// afterReboot decides about containers that ran until the host was stopped, or lost its power:
// those whose files are kept can be started again, if the files are of use; the others have ended.
func (r recovery) afterReboot(rebooted []*containers.Container) {
	const parallelChecks = 8 // each may replay a journal
	var checks errgroup.Group
	checks.SetLimit(parallelChecks)
	var kept atomic.Int64
	for _, c := range rebooted {
		checks.Go(func() error {
			if r.keepAfterReboot(c) {
				kept.Add(1)
				return nil
			}
			at := time.Now().UTC().Round(0) // as it comes back from a record
			r.ends.record(c, keeper.End{ExitCode: containers.KilledExitCode, Signal: int(unix.SIGKILL), At: at})
			return nil
		})
	}
	_ = checks.Wait()
	if len(rebooted) > 0 {
		r.log.Info().Int64("kept", kept.Load()).Int64("ended", int64(len(rebooted))-kept.Load()).
			Msg("the host was started again: containers that ran have been kept without their processes, or have ended")
	}
}

// keepAfterReboot makes the container one that can be started again, and returns false for one that
// cannot.
func (r recovery) keepAfterReboot(c *containers.Container) bool {
	record := c.Record()
	if !record.KeepsFiles() || record.Removing {
		return false
	}
	if record.Volatile && !record.Stopped {
		c.SetFilesLost("the host was started again before they were written")
		return false
	}
	err := r.disks.check(c)
	if errors.Is(err, disk.ErrBroken) {
		r.log.Error().Err(err).Str("container", c.Name).Msg("files of container cannot be kept after the reboot")
		c.SetFilesLost(err.Error())
		return false
	}
	if err != nil { // the next start of the container tries again
		r.log.Warn().Err(err).Str("container", c.Name).Msg("cannot check the files of container after the reboot")
	}
	if err := c.SetStopped(); err != nil {
		r.log.Error().Err(err).Str("container", c.Name).Msg("cannot record that container was kept after the reboot; retried at service start")
	}
	return true
}

// run undoes starts and finishes removals that were cut off, and removes what has no record. A
// container for which that fails, because one of its processes is stuck in the kernel for example,
// keeps no other from being served: the next start or removal of it tries again.
func (r recovery) run(ctx context.Context) error {
	if err := r.killOrphans(ctx); err != nil {
		return err
	}
	for _, c := range r.containers.All() {
		err := r.recoverContainer(ctx, c)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("container %s: %w", c.Name, err)
		}
		if err != nil {
			r.log.Error().Err(err).Str("container", c.Name).Msg("recovery of container failed; retried at its next start or removal")
		}
	}
	if err := r.sweep(ctx); err != nil && ctx.Err() == nil {
		r.log.Error().Err(err).Msg("cannot remove orphaned resources; retried at service start")
	}
	return ctx.Err()
}

func (r recovery) recoverContainer(ctx context.Context, c *containers.Container) error {
	if err := c.Lock(ctx); err != nil {
		return err
	}
	defer c.Unlock()
	record := c.Record()
	if record.Memory == nil { // what a hibernation or a start that was cut off has left
		if err := r.disks.trash.Throw(c.Directory.Memory()); err != nil {
			return err
		}
	}
	switch {
	case record.Removing, record.IsTest():
		return r.remove(ctx, c)
	case c.HasEnded() && record.Memory != nil:
		return r.finishHibernation(ctx, c)
	case record.Fresh:
		return r.finishRollback(ctx, c)
	case record.Run != nil && !record.Started():
		if err := r.release(ctx, c); err != nil {
			return err
		}
		err := c.Update(func(r *containers.Record) {
			r.Run = nil
			if !r.Stopped {
				r.StartError = "the service ended while the container was being started"
			}
		})
		if err == nil {
			r.users.release(record.Run)
		}
		return err
	case c.HasEnded() && record.Run.Network != nil:
		return detach(r.network, c)
	}
	return nil
}

// sweep removes control groups, states of runtimes and sources of mounts that belong to no
// container, and what was being made. What cannot be removed keeps nothing else from it.
func (r recovery) sweep(ctx context.Context) error {
	started := map[string]bool{}
	for _, c := range r.containers.All() {
		started[c.ID] = c.Record().Run != nil
	}
	// No start is in progress, so no container has sources of mounts.
	err := eachUnknown(r.layout.RunMounts(), nil, func(id string) error {
		r.sources.Release(id)
		return nil
	})
	return errors.Join(
		r.sweepGroups(started), r.sweepStates(ctx, started), err,
		eachUnknown(r.layout.RunRoots(), started, func(id string) error { return os.Remove(r.layout.Root(id)) }),
		r.volumes.Sweep(), r.disks.trash.Sweep(r.layout.Data, "."))
}

func (r recovery) sweepGroups(started map[string]bool) error {
	groups, err := r.cgroups.List()
	if err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	for _, id := range groups {
		if id == keeperGroup || started[id] {
			continue
		}
		if err := r.cgroups.Group(id).Remove(); err != nil {
			r.log.Error().Err(err).Str("container_id", id).Msg("cannot remove a control group without a container; retried at service start")
		}
	}
	return nil
}

func (r recovery) sweepStates(ctx context.Context, started map[string]bool) error {
	return eachUnknown(r.layout.RunRuntimes(), nil, func(runtime string) error {
		return eachUnknown(filepath.Join(r.layout.RunRuntimes(), runtime), started, func(name string) error {
			id := idPattern.FindString(name) // runsc's files have it in their names
			if started[id] {
				return nil
			}
			return r.deleteState(ctx, runtime, cmp.Or(id, name))
		})
	})
}

// idPattern matches the id of a container.
var idPattern = regexp.MustCompile(`[0-9a-f]{32}`)

// eachUnknown calls do for every entry of a directory that is not known, and returns every error.
func eachUnknown(directory string, known map[string]bool, do func(name string) error) error {
	entries, err := os.ReadDir(directory)
	errs := []error{err}
	for _, entry := range entries {
		if !known[entry.Name()] {
			errs = append(errs, do(entry.Name()))
		}
	}
	return errors.Join(errs...)
}
