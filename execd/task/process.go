package task

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errGone: the process has ended.
var errGone = errors.New("the process has ended")

// processID names a process for good. Its number alone may be another one's by now.
type processID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
}

// stat is what /proc tells of a process.
type stat struct {
	state  byte
	parent int
	start  uint64
}

// zombie reports whether the process has ended and only waits to be waited for.
func (s stat) zombie() bool { return s.state == 'Z' || s.state == 'X' }

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return stat{}, errGone
		}
		return stat{}, err
	}
	return parseStat(data)
}

// parseStat reads proc_pid_stat(5). The second field is the program's name, which may contain anything.
func parseStat(data []byte) (stat, error) {
	end := bytes.LastIndexByte(data, ')')
	fields := bytes.Fields(data[end+1:])
	const state, parent, start = 0, 1, 19 // fields 3, 4 and 22
	if end < 0 || len(fields) <= start {
		return stat{}, fmt.Errorf("not the form of proc_pid_stat(5): %.100q", data)
	}
	s := stat{state: fields[state][0]}
	var err, err2 error
	s.parent, err = strconv.Atoi(string(fields[parent]))
	s.start, err2 = strconv.ParseUint(string(fields[start]), 10, 64)
	return s, errors.Join(err, err2)
}

// identify returns the name for good of a process that runs.
func identify(pid int) (processID, error) {
	s, err := readStat(pid)
	return processID{PID: pid, Start: s.start}, err
}

// open returns a descriptor of the process, or errGone. The caller closes it.
func (p processID) open() (*os.File, error) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	// What has the right start now had it when the descriptor was opened: the process is older than that.
	if s, err := readStat(p.PID); err != nil || s.start != p.Start {
		file.Close()
		if err == nil {
			err = errGone
		}
		return nil, err
	}
	return file, nil
}

// send sends a signal to the process of a descriptor. A process that has ended gets none, and that is no error.
func send(pidfd *os.File, sig unix.Signal) error {
	connection, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = connection.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	return errors.Join(err, sent)
}

// exited closes its channel when the process of a descriptor has ended, or when the descriptor is closed.
func exited(pidfd *os.File) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		connection, err := pidfd.SyscallConn()
		if err != nil {
			return
		}
		// Its error is that the descriptor was closed.
		_ = connection.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
	}()
	return ended
}

// pids returns the numbers of all processes of the namespace.
func pids() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			found = append(found, pid)
		}
	}
	return found, nil
}

// children returns the numbers of the children of a process.
func children(parent int) ([]int, error) {
	all, err := pids()
	if err != nil {
		return nil, err
	}
	var found []int
	for _, pid := range all {
		if s, err := readStat(pid); err == nil && s.parent == parent {
			found = append(found, pid)
		}
	}
	return found, nil
}

// mountNamespace returns what is equal for processes that see the same files.
func mountNamespace(pid int) (string, error) { return os.Readlink(procPath(pid, "ns/mnt")) }

// findMain returns the first process of the main container, or errNoMain: the oldest process that has the marker in its environment and
// not our own files. The marker is demanded and nothing guessed, because a container that is just being made has processes, too, and
// those still see the files of the node.
func findMain(marker string) (processID, error) {
	own, err := mountNamespace(os.Getpid())
	if err != nil {
		return processID{}, err
	}
	all, err := pids()
	if err != nil {
		return processID{}, err
	}
	var found processID
	for _, pid := range all {
		namespace, err := mountNamespace(pid)
		if err != nil || namespace == own {
			continue // it has ended, or is none of the main container
		}
		s, err := readStat(pid)
		if err != nil || s.zombie() || found.PID != 0 && (s.start > found.Start || s.start == found.Start && pid > found.PID) {
			continue
		}
		environ, err := os.ReadFile(procPath(pid, "environ"))
		if err != nil || !bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+marker+"\x00")) {
			continue
		}
		found = processID{PID: pid, Start: s.start}
	}
	if found.PID == 0 {
		return processID{}, fmt.Errorf("%w: no process of another container has %s in its environment", errNoMain, marker)
	}
	return found, nil
}

// errNoMain: the main container does not run.
var errNoMain = errors.New("the main container does not run")

// killNamespace kills the processes of a mount namespace, adds them to killed, and reports whether there were any.
func killNamespace(namespace string, killed map[processID]bool) (found bool, err error) {
	all, err := pids()
	if err != nil {
		return false, err
	}
	for _, pid := range all {
		p, err := identify(pid)
		if err != nil {
			continue
		}
		pidfd, err := p.open()
		if err != nil {
			continue
		}
		// Asked for with the descriptor at hand: the answer is about this process, or the process gets no signal.
		if seen, err := mountNamespace(pid); err == nil && seen == namespace && send(pidfd, unix.SIGKILL) == nil {
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
