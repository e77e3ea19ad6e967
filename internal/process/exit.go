package process

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes of shells and container engines for a command that did not start.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// ExitCode returns the exit code of a process that has ended, as shells and container engines
// report it: 128+N after signal N.
func ExitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return SignalCode(status.Signal())
	}
	return status.ExitStatus()
}

// SignalCode returns the exit code of a process that a signal has ended.
func SignalCode(signal syscall.Signal) int { return 128 + int(signal) }

// StartFailure returns the exit code for a program that did not start: 127 when it does not exist,
// 126 when it cannot be executed.
func StartFailure(err error) int {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return codeNotFound
	}
	return codeNotExecutable
}

// SignalGroup signals the process group of a leader, which has not been waited for: after that its
// number may be another group's. The error is ESRCH when no process of the group is left.
func SignalGroup(leader int, signal syscall.Signal) error { return unix.Kill(-leader, signal) }

// GroupRuns reports whether a process of a group runs besides the group's leader, which has ended
// and has not been waited for. Without /proc it finds none.
func GroupRuns(leader int) bool {
	all, _ := List()
	for _, pid := range all {
		if group, err := unix.Getpgid(pid); err != nil || group != leader || pid == leader {
			continue
		}
		if stat, err := ReadStat(Directory(pid)); err == nil && !stat.Ended() {
			return true
		}
	}
	return false
}

// Reap waits for every child that has ended already, orphans that this process has adopted
// included, and calls ended for each.
func Reap(ended func(pid int, status syscall.WaitStatus)) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid <= 0: // no child at all, or none that has ended
			return
		default:
			ended(pid, status)
		}
	}
}

// AwaitExit returns when the child pid has ended, and leaves it to be waited for.
//
// It sleeps on a descriptor of the process in the runtime's poller: a blocking wait would cost a
// thread per running process. Where the kernel has no such descriptors (before 5.10, or when a
// filter of system calls forbids them) it does block.
func AwaitExit(pid int) {
	if fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
		file := os.NewFile(uintptr(fd), "pidfd")
		defer file.Close()
		connection, err := file.SyscallConn()
		if err == nil && connection.Read(func(uintptr) bool { return HasExited(pid) }) == nil {
			return
		}
	}
	hasExited(pid, 0)
}

// HasExited reports, without waiting, whether the child pid has ended, and leaves it to be waited
// for. A child that cannot be asked for counts as ended: waiting for it says why.
func HasExited(pid int) bool { return hasExited(pid, unix.WNOHANG) }

func hasExited(pid, options int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || info.Signo != 0
		}
	}
}
