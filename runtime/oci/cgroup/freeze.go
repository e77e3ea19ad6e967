package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/runtime/oci/thread"
)

// freezeTime is the longest that a freeze may take; one takes microseconds, unless a process is in
// an uninterruptible wait.
const freezeTime = 10 * time.Second

// deadlockTime is how long a freeze on version 1 may take before the processes run for a moment,
// and twice as long each time after: that many processes stop takes its time, too.
const deadlockTime = 25 * time.Millisecond

// Freeze stops the group's processes and returns when all have stopped. If they do not before ctx
// ends, or within 10 s, it thaws them.
func (g Group) Freeze(ctx context.Context) error {
	if err := g.await(ctx, true); err != nil {
		if thawed := g.Thaw(context.WithoutCancel(ctx)); thawed != nil {
			return fmt.Errorf("freeze: %w; then thaw: %w", err, thawed)
		}
		return fmt.Errorf("freeze: %w", err)
	}
	return nil
}

// Thaw lets the group's processes run again, and returns when they do.
func (g Group) Thaw(ctx context.Context) error {
	if err := g.await(ctx, false); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// Frozen reports whether the group was asked to freeze and all its processes have stopped.
func (g Group) Frozen() (bool, error) {
	directory, h := g.in(freezer)
	if h.version2 {
		frozen, err := field(directory, "cgroup.events", "frozen")
		return frozen == "1", err
	}
	state, err := os.ReadFile(filepath.Join(directory, "freezer.state"))
	return strings.TrimSpace(string(state)) == "FROZEN", err
}

// await asks for the state until it is there. Nothing reports it on version 1.
func (g Group) await(ctx context.Context, want bool) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTime)
	defer cancel()
	directory, h := g.in(freezer)
	name, value := "freezer.state", "THAWED"
	switch {
	case h.version2 && want:
		name, value = "cgroup.freeze", "1"
	case h.version2:
		name, value = "cgroup.freeze", "0"
	case want:
		value = "FROZEN"
	}
	began, patience := time.Now(), deadlockTime
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		// Version 1 may stop threads whose end an execve waits for, and that thread cannot stop
		// while it waits.
		if want && !h.version2 && time.Since(began) > patience {
			if err := write(directory, name, "THAWED"); err != nil {
				return err
			}
			thread.Sleep(time.Millisecond)
			began, patience = time.Now(), 2*patience
		}
		// Version 1 misses processes that were being made: it is asked again.
		if err := write(directory, name, value); err != nil {
			return err
		}
		frozen, err := g.Frozen()
		if err != nil || frozen == want {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// sleep waits, or returns why ctx has ended.
func sleep(ctx context.Context, pause time.Duration) error {
	if pause < time.Millisecond {
		thread.Sleep(pause) // a timer takes a millisecond at least
		return ctx.Err()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
