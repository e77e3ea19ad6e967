// Package reap waits for processes, for the engines that start them.
package reap

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// AwaitExit returns when our child pid has ended, and leaves it to be waited for.
//
// It sleeps on a descriptor of the process in the runtime's poller: a blocking wait would cost a thread per running command.
// Where the kernel has no such descriptors it does block.
func AwaitExit(pid int) {
	if file := pidFile(pid); file != nil {
		defer file.Close()
		connection, err := file.SyscallConn()
		if err == nil && connection.Read(func(uintptr) bool { return HasExited(pid) }) == nil {
			return
		}
	}
	hasExited(pid, 0)
}

func pidFile(pid int) *os.File {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

// HasExited reports, without waiting, whether our child has ended, and leaves it to be waited for. A child that cannot be asked for
// counts as ended: waiting for it tells why.
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
