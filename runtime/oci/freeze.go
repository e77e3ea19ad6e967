package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/bundle"
)

// commandTimeout bounds a command of a runtime about one container.
const commandTimeout = 10 * time.Second

// Freeze implements [engine.Engine].
func (e *Engine) Freeze(ctx context.Context, id string) error {
	return e.whileRunning(ctx, "freeze container "+id, id, e.freeze)
}

// Thaw implements [engine.Engine].
func (e *Engine) Thaw(ctx context.Context, id string) error {
	return e.whileRunning(ctx, "thaw container "+id, id, e.thaw)
}

// whileRunning calls do with a container that runs or is frozen, in its turn.
func (e *Engine) whileRunning(ctx context.Context, op, id string, do func(context.Context, *container) error) error {
	c, err := e.holdRunning(ctx, op, id)
	if err != nil {
		return err
	}
	defer c.release()
	if err := do(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (e *Engine) freeze(ctx context.Context, c *container) error {
	e.mu.Lock()
	frozen := c.frozen
	e.mu.Unlock()
	if frozen {
		return nil
	}
	if err := e.freezeProcesses(ctx, c); err != nil {
		return err
	}
	e.setFrozen(c, true, engine.EventFrozen)
	return nil
}

func (e *Engine) thaw(ctx context.Context, c *container) error {
	e.mu.Lock()
	frozen := c.frozen
	e.mu.Unlock()
	if !frozen {
		return nil
	}
	if err := e.thawProcesses(ctx, c); err != nil {
		return err
	}
	e.setFrozen(c, false, engine.EventThawed)
	return nil
}

func (e *Engine) setFrozen(c *container, frozen bool, event engine.EventType) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.end == nil {
		c.frozen = frozen
		e.emit(c, event)
	}
}

// freezeProcesses freezes what runs in a container: by its control group, or by its runtime where that kills it.
func (e *Engine) freezeProcesses(ctx context.Context, c *container) error {
	runtime, err := e.runtime(c.record.Runtime)
	if err != nil {
		return err
	}
	if !runtime.Pauses {
		return e.cgroups.Group(c.id).Freeze(ctx)
	}
	// An earlier call may have been cut off before its answer.
	if frozen, err := e.paused(ctx, runtime, c); err != nil || frozen {
		return err
	}
	_, err = runCommand(ctx, runtime.PauseArgs(e.layout.runtime(c.record.Runtime), c.id))
	return err
}

// thawProcesses takes freezeProcesses back. A container that the control group has frozen does not need its runtime for that.
func (e *Engine) thawProcesses(ctx context.Context, c *container) error {
	runtime, err := e.runtime(c.record.Runtime)
	if err != nil || !runtime.Pauses {
		return e.cgroups.Group(c.id).Thaw(ctx)
	}
	if frozen, err := e.paused(ctx, runtime, c); err != nil || !frozen {
		return err
	}
	_, err = runCommand(ctx, runtime.ResumeArgs(e.layout.runtime(c.record.Runtime), c.id))
	return err
}

// processesFrozen reports whether a container is frozen, for a service that has just started.
func (e *Engine) processesFrozen(ctx context.Context, c *container) (bool, error) {
	runtime, err := e.runtime(c.record.Runtime)
	if err != nil || !runtime.Pauses {
		return e.cgroups.Group(c.id).Frozen()
	}
	return e.paused(ctx, runtime, c)
}

// paused asks the runtime whether it has frozen a container.
func (e *Engine) paused(ctx context.Context, runtime bundle.Runtime, c *container) (bool, error) {
	output, err := runCommand(ctx, runtime.StateArgs(e.layout.runtime(c.record.Runtime), c.id))
	if err != nil {
		return false, err
	}
	var state struct{ Status string }
	if err := json.Unmarshal(output, &state); err != nil {
		return false, fmt.Errorf("%s: state of container %s: %w", runtime.Path, c.id, err)
	}
	return state.Status == "paused", nil
}

// runCommand runs a command of a runtime, and returns what it prints.
func runCommand(ctx context.Context, args []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, args[0], args[1:]...).Output() //nolint:gosec // the runtime's own command
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", args[0], err, exit.Stderr[:min(len(exit.Stderr), 1<<10)])
	}
	return output, err
}
