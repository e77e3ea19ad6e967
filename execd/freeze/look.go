package freeze

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// process is one process for ever: its number may be given to another, which has started later then.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since the system's start
}

// seen is what a look finds out about a process.
type seen struct {
	process
	parent int
	depth  int // of the tree that it stands in

	// held: every thread is stopped. waits: every thread is stopped or waits in the kernel where no signal wakes it, for a disk or for
	// a child that has not called execve yet; it stops before it comes out, when it has been signalled.
	held, waits bool
}

// look returns the sandbox's processes that have not ended, parents before their children: all of the namespace when root is process 1,
// else the descendants of root; without root and self. It is whole unless a process ended meanwhile and left children whose place is
// not known.
func look(root, self int) (found []seen, whole bool, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, false, fmt.Errorf("look at the processes: %w", err)
	}
	all := make(map[int]*seen)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
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
	slices.SortFunc(found, func(a, b seen) int { return a.depth - b.depth })
	return found, whole, nil
}

// inspect returns nil for a process that has ended.
func inspect(pid int) (*seen, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	_, fields, err := stat(dir)
	if fields == nil {
		return nil, err
	}
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return nil, unlessEnded(err)
	}
	var stopped, waiting, running int
	for _, thread := range threads {
		state, _, err := stat(dir + "/task/" + thread.Name())
		if err != nil {
			return nil, err
		}
		switch state {
		case 0, 'Z', 'X': // this thread has ended, others may run
		case 'T', 't':
			stopped++
		case 'D':
			waiting++
		default:
			running++
		}
	}
	if stopped+waiting+running == 0 {
		return nil, nil
	}
	p := &seen{process: process{PID: pid}, held: waiting+running == 0, waits: waiting > 0 && running == 0}
	p.parent, err = strconv.Atoi(string(fields[1]))
	if err != nil {
		return nil, err
	}
	p.Start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return p, err
}

// stat returns the state of a process or thread, and the fields from the state on (proc(5), /proc/pid/stat, number 3); none when it has
// ended.
func stat(dir string) (state byte, fields [][]byte, err error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, nil, unlessEnded(err)
	}
	// The name before it may hold anything, brackets too.
	fields = bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return 0, nil, fmt.Errorf("%s/stat is not in the form that proc(5) describes: %q", dir, text)
	}
	return fields[0][0], fields, nil
}

// unlessEnded drops the errors of reading about who has ended.
func unlessEnded(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
