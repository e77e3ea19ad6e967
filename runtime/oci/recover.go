package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/disk"
	"sandbox.internal/runtime/oci/keeper"
	"sandbox.internal/runtime/oci/network"
)

// keeperGroup is the control group of the keeper itself, next to those of the containers, whose names are hexadecimal.
const keeperGroup = "keeper"

// loadRecords reads the record of every container. A folder without one is thrown away, and one whose record is cut off: either it was being
// created, or the host has lost power, and then nothing else of it is left. Any other record that cannot be read may be of a container that runs.
func (e *Engine) loadRecords() error {
	entries, err := os.ReadDir(e.layout.containers())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		at := e.layout.container(entry.Name())
		r, err := readRecord(at)
		var cutOff *json.SyntaxError
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.As(err, &cutOff) {
			return fmt.Errorf("the record of a container cannot be read: %w (remove the file to give the container up)", err)
		}
		if err != nil {
			e.log.Warn().Err(err).Str("container_id", entry.Name()).Msg("a container without a record is removed")
			if err := e.trash.throw(string(at)); err != nil {
				return err
			}
			continue
		}
		c := newContainer(at, r)
		c.removing = r.Removing
		e.byID[r.ID], e.byName[r.Spec.Name] = c, c
	}
	return nil
}

// openKeeper connects to the keeper, and starts one if none runs.
func (e *Engine) openKeeper(ctx context.Context) error {
	group, err := e.cgroups.Make(keeperGroup, engine.Resources{})
	if err != nil {
		return fmt.Errorf("control group of the keeper: %w", err)
	}
	e.keeper, err = keeper.Open(ctx, keeper.Options{
		Program: e.options.Keeper, Folder: e.layout.run, CgroupFolders: group.Folders(), Logger: e.log, Exited: e.exited,
	})
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return e.proveShared()
}

// proveShared makes sure that the keeper has the same data folder. Its mount namespace was made when it was started: a disk that the host
// has mounted there since is not seen in it.
func (e *Engine) proveShared() error {
	pid, err := keeper.ListenerPID(e.layout.run)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	var ours, theirs unix.Stat_t
	if err := unix.Stat(e.layout.data, &ours); err != nil {
		return err
	}
	err = unix.Stat(filepath.Join("/proc", fmt.Sprint(pid), "root", e.layout.data), &theirs)
	if err != nil || ours.Dev != theirs.Dev || ours.Ino != theirs.Ino {
		return fmt.Errorf("keeper: process %d runs since before %s was mounted: end it once no sandbox runs, and start the service again",
			pid, e.layout.data)
	}
	return nil
}

// adoptRunning finds out which containers run and which have ended, and returns what the running ones have of the network.
func (e *Engine) adoptRunning(ctx context.Context) (inUse []network.Attachment, err error) {
	var running []keeper.Running
	attached, err := disk.FindAttached()
	if err != nil {
		return nil, fmt.Errorf("file systems of containers: %w", err)
	}
	for _, c := range e.all() {
		run := c.record.Run
		if run == nil || run.Process.PID == 0 {
			continue // what there is of it is removed later
		}
		if end, err := keeper.ReadEnd(c.at.end()); err == nil {
			e.noteEnd(c, end)
			continue
		}
		if run.BootID != e.bootID {
			e.noteEnd(c, keeper.End{ExitCode: killedExitCode, Signal: int(unix.SIGKILL), At: now()})
			continue
		}
		e.adoptDisk(c, attached)
		frozen, err := e.processesFrozen(ctx, c)
		if err != nil {
			e.log.Warn().Err(err).Str("container", c.name).Msg("whether it is frozen cannot be read")
		}
		e.mu.Lock()
		c.frozen = frozen && c.end == nil
		e.mu.Unlock()
		running = append(running, keeper.Running{Watched: c.watched(), Process: run.Process})
		if run.Network != nil {
			inUse = append(inUse, *run.Network)
		}
	}
	if err := e.keeper.Adopt(ctx, running); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	return inUse, nil
}

func (e *Engine) all() []*container {
	e.mu.Lock()
	defer e.mu.Unlock()
	containers := make([]*container, 0, len(e.byID))
	for _, c := range e.byID {
		containers = append(containers, c)
	}
	return containers
}

// recover undoes starts and finishes removals that were cut off, and removes what has no record. A container for which that fails, because
// one of its processes is stuck in the kernel for example, keeps no other from being served: the next start or removal of it tries again.
func (e *Engine) recover(ctx context.Context) error {
	e.mu.Lock()
	e.networkReady = true
	e.mu.Unlock()
	if err := e.killLeftOver(ctx); err != nil {
		return err
	}
	for _, c := range e.all() {
		err := e.recoverContainer(ctx, c)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("container %s: %w", c.name, err)
		}
		if err != nil {
			e.log.Error().Err(err).Str("container", c.name).Msg("what an earlier service began with it could not be finished")
		}
	}
	if err := e.sweep(ctx); err != nil && ctx.Err() == nil {
		e.log.Error().Err(err).Msg("what belongs to no container stays until the next start of the service")
	}
	return ctx.Err()
}

func (e *Engine) recoverContainer(ctx context.Context, c *container) error {
	if err := c.take(ctx); err != nil {
		return err
	}
	defer c.release()
	e.mu.Lock()
	ended := c.end != nil
	e.mu.Unlock()
	switch r := c.record; {
	case r.Removing, r.isTrial():
		return e.remove(ctx, c)
	case r.Run != nil && r.Run.Process.PID == 0:
		if err := e.releaseRun(ctx, c); err != nil {
			return err
		}
		err := e.update(c, func(r *record) { r.Run, r.StartError = nil, "the service ended while the container was being started" })
		if err == nil {
			e.releaseUsers(r.Run)
		}
		return err
	case ended && r.Run.Network != nil:
		return e.network.Detach(r.ID)
	}
	return nil
}

// sweep removes control groups, states of runtimes and sources of mounts that belong to no container, and what was being made. What cannot be
// removed keeps nothing else from it.
func (e *Engine) sweep(ctx context.Context) error {
	started := map[string]bool{}
	for _, c := range e.all() {
		started[c.id] = c.record.Run != nil
	}
	// No start is in progress, so no container has sources of mounts.
	err := eachUnknown(e.layout.runMounts(), nil, func(id string) error {
		e.releaseSources(id)
		return nil
	})
	return errors.Join(
		e.sweepGroups(started), e.sweepStates(ctx, started), err,
		eachUnknown(e.layout.runRoots(), started, func(id string) error { return os.Remove(e.layout.root(id)) }),
		e.sweepUnfinished(e.layout.volumes()), e.sweepUnfinished(e.layout.folders()), e.sweepUnfinished(e.layout.data))
}

func (e *Engine) sweepGroups(started map[string]bool) error {
	groups, err := e.cgroups.List()
	if err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	for _, id := range groups {
		if id == keeperGroup || started[id] {
			continue
		}
		if err := e.cgroups.Group(id).Remove(); err != nil {
			e.log.Error().Err(err).Str("container_id", id).Msg("a control group without a container stays until the next start of the service")
		}
	}
	return nil
}

func (e *Engine) sweepStates(ctx context.Context, started map[string]bool) error {
	return eachUnknown(e.layout.runRuntimes(), nil, func(runtime string) error {
		return eachUnknown(filepath.Join(e.layout.runRuntimes(), runtime), started, func(name string) error {
			id := idPattern.FindString(name) // runsc's files have it in their names
			if started[id] {
				return nil
			}
			return e.deleteState(ctx, runtime, cmp.Or(id, name))
		})
	})
}

// idPattern matches the id of a container.
var idPattern = regexp.MustCompile(`[0-9a-f]{32}`)

// eachUnknown calls do for every entry of a folder that is not known, and returns every error.
func eachUnknown(folder string, known map[string]bool, do func(name string) error) error {
	entries, err := os.ReadDir(folder)
	errs := []error{err}
	for _, entry := range entries {
		if !known[entry.Name()] {
			errs = append(errs, do(entry.Name()))
		}
	}
	return errors.Join(errs...)
}

// sweepUnfinished throws away what was being made in a folder.
func (e *Engine) sweepUnfinished(folder string) error {
	return eachUnknown(folder, nil, func(name string) error {
		if !strings.HasPrefix(name, unfinishedPrefix) {
			return nil
		}
		return e.trash.throw(filepath.Join(folder, name))
	})
}
