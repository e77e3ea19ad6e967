package freeze

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"sandbox.internal/internal/process"
)

// processInfo is the state of a process in one listing.
type processInfo struct {
	process.ID
	parent int
	depth  int // of the tree that it stands in

	// held: every thread is stopped. waits: every thread is stopped or waits in the kernel where no
	// signal wakes it, for a disk or for a child that has not called execve yet; it stops before it
	// comes out, when it has been signalled.
	held, waits bool
}

// listProcesses returns the sandbox's processes that have not ended, parents before their children:
// all of the namespace when root is process 1, else the descendants of root; without root and self.
// It is whole unless a process ended meanwhile and left children whose place is not known.
func listProcesses(root, self int) (found []processInfo, whole bool, err error) {
	pids, err := process.List()
	if err != nil {
		return nil, false, fmt.Errorf("look at the processes: %w", err)
	}
	all := make(map[int]*processInfo)
	for _, pid := range pids {
		p, err := inspect(pid)
		if err != nil {
			return nil, false, fmt.Errorf("look at process %d: %w", pid, err)
		}
		if p != nil {
			all[pid] = p
		}
	}
	whole = true
	for pid, p := range all {
		if pid == root || pid == self {
			continue
		}
		above, depth := p.parent, 1
		for ; above != 0 && above != root && depth <= len(all); depth++ {
			parent := all[above]
			if parent == nil {
				whole = false
				break
			}
			above = parent.parent
		}
		if above == root || root == 1 {
			p.depth = depth
			found = append(found, *p)
		}
	}
	slices.SortFunc(found, func(a, b processInfo) int { return a.depth - b.depth })
	return found, whole, nil
}

// inspect returns nil for a process that has ended.
func inspect(pid int) (*processInfo, error) {
	directory := process.Directory(pid)
	stat, err := process.ReadStat(directory)
	if err != nil {
		return nil, unlessEnded(err)
	}
	threads, err := os.ReadDir(directory + "/task")
	if err != nil {
		return nil, unlessEnded(err)
	}
	var stopped, waiting, running int
	for _, thread := range threads {
		stat, err := process.ReadStat(directory + "/task/" + thread.Name())
		switch {
		case errors.Is(err, process.ErrEnded) || err == nil && stat.Ended(): // this thread has ended, others may run
		case err != nil:
			return nil, err
		case stat.State == 'T' || stat.State == 't':
			stopped++
		case stat.State == 'D':
			waiting++
		default:
			running++
		}
	}
	if stopped+waiting+running == 0 {
		return nil, nil
	}
	return &processInfo{
		ID: process.ID{PID: pid, Start: stat.Start}, parent: stat.Parent, held: waiting+running == 0, waits: waiting > 0 && running == 0,
	}, nil
}

// unlessEnded drops the errors of reading about what has ended.
func unlessEnded(err error) error {
	if errors.Is(err, process.ErrEnded) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
