package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const procs = "cgroup.procs"

// killFreeze is how long Kill waits for processes to stop before it kills those that it sees.
const killFreeze = time.Second

// removeTime is how long Remove waits for processes to be gone.
const removeTime = 10 * time.Second

// Kill sends SIGKILL to every process of the group and of groups below it, frozen or not, and does
// not wait for their end. Killing a group that is gone succeeds.
func (g Group) Kill() error {
	if err := g.check(); err != nil {
		return err
	}
	directory, h := g.in(freezer)
	if h.version2 {
		err := write(directory, "cgroup.kill", "1")
		if err == nil {
			return nil
		}
		if _, gone := os.Stat(directory); errors.Is(gone, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // kernels before 5.14 lack the file
			return fmt.Errorf("kill: %w", err)
		}
	}
	return g.killEach(directory)
}

// killEach stops the processes before it kills them, so that none can make others in between.
func (g Group) killEach(directory string) error {
	ctx, cancel := context.WithTimeout(context.Background(), killFreeze)
	defer cancel()
	frozen := g.await(ctx, true) // one that cannot be stopped now is killed all the same
	if errors.Is(frozen, fs.ErrNotExist) || errors.Is(frozen, unix.ENODEV) {
		return nil
	}
	var failed error
	err := eachGroup(directory, func(directory string) error {
		members, err := processes(directory)
		for _, pid := range members {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
				failed = errors.Join(failed, fmt.Errorf("kill process %d: %w", pid, err))
			}
		}
		return err
	})
	if err := errors.Join(failed, err); err != nil {
		failed = fmt.Errorf("kill: %w", err)
	}
	if err := g.Thaw(context.Background()); err != nil && !gone(err) {
		failed = errors.Join(failed, err)
	}
	return failed
}

// Empty reports whether no process is left in the group or in groups below it. A group that is gone
// is empty. Zombies count on no version.
func (g Group) Empty() (bool, error) {
	directory, h := g.in(freezer)
	if h.version2 {
		populated, err := field(directory, "cgroup.events", "populated")
		if gone(err) {
			return true, nil
		}
		return populated == "0", err
	}
	empty := true
	err := eachGroup(directory, func(directory string) error {
		members, err := processes(directory)
		empty = empty && len(members) == 0
		return err
	})
	return empty, err
}

// Remove kills what is left in the group and removes it, within 10 s. Removing a group that is gone
// succeeds.
func (g Group) Remove() error {
	if err := g.check(); err != nil {
		return err
	}
	deadline := time.Now().Add(removeTime)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		busy := g.removeDirectories()
		if busy == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control group: %w", busy)
		}
		// rmdir of a group is EBUSY while a process is in it. None of these errors is final: the
		// group is being emptied.
		if err := g.Kill(); err != nil {
			return err
		}
		time.Sleep(pause)
	}
}

func (g Group) removeDirectories() error {
	var failed error
	for _, h := range g.tree.hierarchies {
		err := eachGroup(g.directory(h), func(directory string) error {
			if err := unix.Rmdir(directory); err != nil && err != unix.ENOENT {
				return &fs.PathError{Op: "rmdir", Path: directory, Err: err}
			}
			return nil
		})
		failed = errors.Join(failed, err)
	}
	return failed
}

// eachGroup calls do for the groups below the directory, and then for the directory. Those that go
// away meanwhile are left out.
func eachGroup(directory string, do func(directory string) error) error {
	entries, err := os.ReadDir(directory)
	if err != nil && !gone(err) {
		return err
	}
	var failed error
	for _, entry := range entries {
		if entry.IsDir() {
			failed = errors.Join(failed, eachGroup(filepath.Join(directory, entry.Name()), do))
		}
	}
	if err := do(directory); err != nil && !gone(err) {
		failed = errors.Join(failed, err)
	}
	return failed
}

// gone is how the kernel answers for a group that was removed, before and after opening its files.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// processes reads the ids of the processes in a group. Those of other pid namespaces, which have
// the id 0, are left out.
func processes(directory string) ([]int, error) {
	content, err := os.ReadFile(filepath.Join(directory, procs))
	if err != nil {
		return nil, err
	}
	var members []int
	for line := range strings.Lines(string(content)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", directory, procs, err)
		}
		if pid > 0 {
			members = append(members, pid)
		}
	}
	return members, nil
}
