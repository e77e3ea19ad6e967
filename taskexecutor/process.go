package taskexecutor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

func procPath(pid int, name string) string { return process.Directory(pid) + "/" + name }

// children returns the numbers of the children of a process.
func children(parent int) ([]int, error) {
	all, err := process.List()
	if err != nil {
		return nil, err
	}
	var found []int
	for _, pid := range all {
		if s, err := process.ReadStat(process.Directory(pid)); err == nil && s.Parent == parent {
			found = append(found, pid)
		}
	}
	return found, nil
}

// mountNamespace returns what is equal for processes that see the same files.
func mountNamespace(pid int) (string, error) { return os.Readlink(procPath(pid, "ns/mnt")) }

// findMain returns the first process of the main container, or errNoMain, and the oldest one there
// that has the marker in its environment: the same one, unless that has overwritten its
// environment, as some programs do to show a title. A container is the processes that see the same
// files, other ones than ours. The marker is demanded and nothing guessed, because a container that
// is just being made has processes, too, and those still see the files of the node.
func findMain(marker string) (first, marked process.ID, err error) {
	own, err := mountNamespace(os.Getpid())
	if err != nil {
		return first, marked, err
	}
	all, err := process.List()
	if err != nil {
		return first, marked, err
	}
	type container struct{ first, marked process.ID }
	containers := make(map[string]container)
	for _, pid := range all {
		namespace, err := mountNamespace(pid)
		if err != nil || namespace == own {
			continue // it has ended, or is none of the main container
		}
		s, err := process.ReadStat(process.Directory(pid))
		if err != nil || s.Ended() {
			continue
		}
		c, p := containers[namespace], process.ID{PID: pid, Start: s.Start}
		if older(p, c.first) {
			c.first = p
		}
		if older(p, c.marked) && hasMarker(p, marker) {
			c.marked = p
		}
		containers[namespace] = c
	}
	for _, c := range containers {
		if c.marked.PID != 0 && older(c.first, first) {
			first, marked = c.first, c.marked
		}
	}
	if first.PID == 0 {
		return first, marked, fmt.Errorf("%w: no process of another container has %s in its environment", errNoMain, marker)
	}
	return first, marked, nil
}

// older reports whether a process is older than another one, or that is none.
func older(p, than process.ID) bool {
	return than.PID == 0 || p.Start < than.Start || p.Start == than.Start && p.PID < than.PID
}

// hasMarker reports whether a process has the marker in its environment. One that cannot be read
// has none.
func hasMarker(p process.ID, marker string) bool {
	environ, err := readEnviron(p)
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+marker+"\x00"))
}

// errNoMain: the main container does not run.
var errNoMain = errors.New("the main container does not run")

// killNamespace kills the processes of a mount namespace, adds them to killed, and reports whether
// there were any.
func killNamespace(namespace string, killed map[process.ID]bool) (found bool, err error) {
	all, err := process.List()
	if err != nil {
		return false, err
	}
	for _, pid := range all {
		p, err := process.Identify(pid)
		if err != nil {
			continue
		}
		pidfd, err := p.Open()
		if err != nil {
			continue
		}
		// Asked for with the descriptor at hand: the answer is about this process, or the process
		// gets no signal.
		if seen, err := mountNamespace(pid); err == nil && seen == namespace && process.Send(pidfd, unix.SIGKILL) == nil {
			found, killed[p] = true, true
		}
		pidfd.Close()
	}
	return found, nil
}

// credentials are what a process of the main container may do.
type credentials struct {
	uid, gid    int
	groups      []int
	umask       int
	inheritable uint64 // capabilities, one bit each
	bounding    uint64
	noNewPrivs  bool
}

// parseCredentials reads them from /proc/PID/status.
func parseCredentials(status string) (credentials, error) {
	fields := make(map[string][]string)
	for line := range strings.Lines(status) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.Fields(value)
		}
	}
	var c credentials
	var errs []error
	number := func(name string, i, base int) uint64 {
		values := fields[name]
		if len(values) <= i {
			errs = append(errs, fmt.Errorf("no %s in it", name))
			return 0
		}
		n, err := strconv.ParseUint(values[i], base, 64)
		errs = append(errs, err)
		return n
	}
	const effective = 1 // real, effective, saved, file system
	c.uid, c.gid = int(number("Uid", effective, 10)), int(number("Gid", effective, 10))
	c.umask = int(number("Umask", 0, 8))
	c.inheritable, c.bounding = number("CapInh", 0, 16), number("CapBnd", 0, 16)
	c.noNewPrivs = number("NoNewPrivs", 0, 10) == 1
	for i := range fields["Groups"] {
		c.groups = append(c.groups, int(number("Groups", i, 10)))
	}
	return c, errors.Join(errs...)
}
