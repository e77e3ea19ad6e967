package command

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// watchExit delivers the news to the run once its process has ended, and leaves it to be waited for.
//
// Where the kernel gives no descriptor of a process (before 5.4, or when a filter of system calls forbids it), a goroutine waits, which
// costs a thread per running command.
func (r *run) watchExit(process *os.Process) {
	err := errNoHandle
	if !r.poller.noHandles {
		var watched error
		err = process.WithHandle(func(handle uintptr) { watched = r.poller.watch(int(handle), r, exited) })
		err = errors.Join(err, watched)
	}
	if err != nil {
		go func() {
			hasExited(process.Pid, 0)
			r.deliver(exited, false)
		}()
	}
}

var errNoHandle = errors.New("descriptors of processes are not used")

// hasExited reports whether our child has ended, and leaves it to be waited for. With the option WNOHANG it does not block. A child that
// cannot be asked for counts as ended: waiting for it tells why.
func hasExited(pid, options int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if !errors.Is(err, unix.EINTR) {
			return err != nil || info.Signo != 0
		}
	}
}
