package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
	"sandbox.internal/runtime/oci/cgroup"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/keeper"
)

const (
	// commandTimeout bounds a command of a runtime about one container.
	commandTimeout = 10 * time.Second
	// checkpointTimeout bounds how long a runtime writes the memory of a container, and how long it
	// takes to let the container run after that.
	checkpointTimeout = 2 * time.Minute
	// killTimeout bounds how long processes that were killed take to be gone: one that waits for a
	// disk takes as long as the disk.
	killTimeout = 20 * time.Second
)

// processes signals and freezes the processes of containers.
type processes struct {
	layout   layout.Layout
	cgroups  *cgroup.Tree
	runtimes *runtimes
	closing  context.Context //nolint:containedctx // ends when the Engine is closed
}

// signal sends a signal to the first process of a container. It succeeds when that is gone.
func (p *processes) signal(c *containers.Container, signal unix.Signal) error {
	fd, err := c.Record().Run.Process.Open()
	if err == nil {
		err = unix.PidfdSendSignal(fd, signal, nil, 0)
		_ = unix.Close(fd)
	}
	if errors.Is(err, keeper.ErrGone) || err == unix.ESRCH {
		return nil
	}
	return err
}

// kill kills everything in the container.
func (p *processes) kill(c *containers.Container) error {
	// The first process takes all others of its PID namespace with it; killing both costs little,
	// and either may be the one that works.
	first, group := p.signal(c, unix.SIGKILL), p.cgroups.Group(c.ID).Kill()
	if first == nil || group == nil {
		return nil
	}
	return errors.Join(first, group)
}

// killAndWait kills everything in the container and waits until its end is known.
func (p *processes) killAndWait(ctx context.Context, c *containers.Container) error {
	if err := p.kill(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	select {
	case <-c.Ended():
		return nil
	case <-c.Gone():
		return nil
	case <-p.closing.Done():
		return background.ClosedError("kill")
	case <-ctx.Done():
		return fmt.Errorf("the container was killed and has not ended: %w", ctx.Err())
	}
}

// freeze freezes a container that runs: by its control group, or by its runtime where the group's
// freezer would kill it. The caller holds the container's lock.
func (p *processes) freeze(ctx context.Context, c *containers.Container) error {
	if c.Frozen() {
		return nil
	}
	err := p.pause(ctx, c)
	if err == nil {
		c.SetFrozen(true)
	}
	return err
}

// pause keeps the processes of a container from running, which is known to the caller alone.
func (p *processes) pause(ctx context.Context, c *containers.Container) error {
	runtime, err := p.runtimes.get(c.Record().Runtime)
	if err != nil {
		return err
	}
	if !runtime.Pauses {
		return p.cgroups.Group(c.ID).Freeze(ctx)
	}
	_, err = runCommand(ctx, runtime.PauseArgs(p.layout.Runtime(c.Record().Runtime), c.ID))
	return p.unless(ctx, runtime, c, true, err)
}

// unless returns the error of a command that was to have the runtime freeze or thaw a container,
// unless an earlier call has done that which was cut off before its answer.
func (p *processes) unless(ctx context.Context, runtime bundle.Runtime, c *containers.Container, frozen bool, err error) error {
	if err == nil {
		return nil
	}
	if is, asked := p.paused(ctx, runtime, c); asked == nil && is == frozen {
		return nil
	}
	return err
}

// thaw takes freeze back. A container that the control group has frozen does not need its runtime
// for that.
func (p *processes) thaw(ctx context.Context, c *containers.Container) error {
	if !c.Frozen() {
		return nil
	}
	err := p.resume(ctx, c)
	if err == nil {
		c.SetFrozen(false)
	}
	return err
}

// resume takes pause back.
//
// The runtime's command is not killed for a caller that has gone, and has time to wait for a write
// of memory to end: what one that was killed has asked runsc for is done later, and a second
// request to resume then ends the container.
func (p *processes) resume(ctx context.Context, c *containers.Container) error {
	runtime, err := p.runtimes.get(c.Record().Runtime)
	if err != nil || !runtime.Pauses {
		return p.cgroups.Group(c.ID).Thaw(ctx)
	}
	state := p.layout.Runtime(c.Record().Runtime)
	_, err = runCommandWithin(context.WithoutCancel(ctx), checkpointTimeout, runtime.ResumeArgs(state, c.ID))
	return p.unless(ctx, runtime, c, false, err)
}

// whileHeld calls do while the processes of a container do not run, and returns for how long that
// was. They run again when it returns; a service that was killed meanwhile is followed by one that
// lets them run. No watcher sees it. do gets a moment since which they have not run. The caller
// holds the container's lock.
func (p *processes) whileHeld(ctx context.Context, c *containers.Container, do func(still time.Time) error) (time.Duration, error) {
	if err := os.WriteFile(c.Directory.Held(), nil, 0o600); err != nil {
		return 0, err
	}
	began := time.Now()
	held, cancel := context.WithTimeout(ctx, holdTimeout)
	err := p.pause(held, c)
	cancel()
	switch {
	case err != nil && ctx.Err() == nil && !c.HasEnded():
		err = fmt.Errorf("%w: %w", engine.ErrBusy, err)
	case err == nil && c.HasEnded():
		err = engine.ErrNotRunning
	case err == nil:
		err = do(time.Now())
	}
	// Also after a pause that failed: it may have stopped some.
	resumed := p.resume(context.WithoutCancel(ctx), c)
	took := time.Since(began)
	if resumed != nil && !c.HasEnded() {
		c.SetFrozen(true) // which a caller sees, and can thaw
		return took, errors.Join(err, fmt.Errorf("thaw: %w", resumed))
	}
	return took, errors.Join(err, os.Remove(c.Directory.Held()))
}

// frozen asks the kernel, or the runtime, whether a container is frozen, for a service that has
// just started.
func (p *processes) frozen(ctx context.Context, c *containers.Container) (bool, error) {
	runtime, err := p.runtimes.get(c.Record().Runtime)
	if err != nil || !runtime.Pauses {
		return p.cgroups.Group(c.ID).Frozen()
	}
	return p.paused(ctx, runtime, c)
}

// paused asks the runtime whether it has frozen a container.
func (p *processes) paused(ctx context.Context, runtime bundle.Runtime, c *containers.Container) (bool, error) {
	output, err := runCommand(ctx, runtime.StateArgs(p.layout.Runtime(c.Record().Runtime), c.ID))
	if err != nil {
		return false, err
	}
	var state struct{ Status string }
	if err := json.Unmarshal(output, &state); err != nil {
		return false, fmt.Errorf("%s: state of container %s: %w", runtime.Path, c.ID, err)
	}
	return state.Status == "paused", nil
}

// runCommand runs a command of a runtime, and returns what it prints.
func runCommand(ctx context.Context, args []string) ([]byte, error) {
	return runCommandWithin(ctx, commandTimeout, args)
}

func runCommandWithin(ctx context.Context, atMost time.Duration, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	output, err := exec.CommandContext(ctx, args[0], args[1:]...).Output() //nolint:gosec // the runtime's own command
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", args[0], err, exit.Stderr[:min(len(exit.Stderr), 1<<10)])
	}
	return output, err
}
