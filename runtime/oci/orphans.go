package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/oci/keeper"
)

// keeperRestart bounds the wait for another keeper after one was killed.
const keeperRestart = 5 * time.Second

// killOrphans kills what a keeper that was killed has left in its own control group: runtimes, and
// containers that they had not moved to theirs yet. What belongs to the keeper that runs now are
// its descendants.
func (l *launcher) killOrphans(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keeperRestart)
	defer cancel()
	current, err := keeper.ListenerPID(l.layout.Run)
	for err != nil {
		select { // nothing reports that the new one listens
		case <-time.After(10 * time.Millisecond):
			current, err = keeper.ListenerPID(l.layout.Run)
		case <-ctx.Done():
			return fmt.Errorf("keeper: %w", err)
		}
	}
	var errs []error
	for _, directory := range l.cgroups.Group(keeperGroup).Directories() {
		content, err := os.ReadFile(filepath.Join(directory, "cgroup.procs"))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for field := range bytes.FieldsSeq(content) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
				errs = append(errs, killUnless(pid, current))
			}
		}
	}
	return errors.Join(errs...)
}

// killUnless kills a process that is not the ancestor and does not descend from it.
func killUnless(pid, ancestor int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	descends, err := descends(pid, ancestor)
	if descends || err != nil { // an error is that of a process that is gone
		return nil
	}
	// The keeper may have ended meanwhile, and another one begun: it begins in this group, as a
	// child of this process.
	if parent, err := keeper.ParentOf(pid); err != nil || parent == os.Getpid() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d, which a keeper has left: %w", pid, err)
	}
	return nil
}

func descends(pid, ancestor int) (bool, error) {
	for pid > 1 {
		if pid == ancestor {
			return true, nil
		}
		var err error
		if pid, err = keeper.ParentOf(pid); err != nil {
			return false, err
		}
	}
	return false, nil
}
