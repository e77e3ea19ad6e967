package keeper

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrGone is the error of what needs a process that is no longer there.
var ErrGone = errors.New("the process is gone")

// stat is a part of proc_pid_stat(5).
type stat struct {
	state  byte
	parent int
	start  uint64
	status unix.WaitStatus // of a process that has ended and was not waited for, for a reader with CAP_SYS_PTRACE
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return stat{}, ErrGone
	}
	if err != nil {
		return stat{}, err
	}
	// The second field is the program's name, which may contain anything, brackets too.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const state, parent, start, status = 0, 1, 19, 49 // fields 3, 4, 22 and 52
	if len(fields) <= status {
		return stat{}, errors.New("/proc/PID/stat has only " + strconv.Itoa(len(fields)+2) + " fields")
	}
	number := func(field int) (n uint64) {
		if err == nil {
			n, err = strconv.ParseUint(string(fields[field]), 10, 64)
		}
		return n
	}
	s := stat{
		state: fields[state][0], parent: int(number(parent)), start: number(start), status: unix.WaitStatus(number(status)),
	}
	return s, err
}

func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' }

// ParentOf returns the id of a process's parent. The error is [ErrGone] when there is no such
// process.
func ParentOf(pid int) (int, error) {
	found, err := readStat(pid)
	return found.parent, err
}

// Alive reports whether the process still is, and is not another one with its number. A process
// that has ended and was not waited for counts.
func (p Process) Alive() bool {
	found, err := readStat(p.PID)
	return err == nil && found.start == p.StartTime
}

// Open returns a pidfd of the process, or [ErrGone].
func (p Process) Open() (fd int, err error) {
	fd, err = unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	// What has the right start time now had the number when the descriptor was opened: its number
	// has not been given away since.
	now, err := readStat(p.PID)
	if err == nil && now.start != p.StartTime {
		err = ErrGone
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
