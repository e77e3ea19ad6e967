package command

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The modes of pipes: any user may write to an output, and read an input.
const (
	outputMode = 0o622
	inputMode  = 0o644
)

// permitReopen lets processes open their end of a pipe by its name (/dev/stdin, /dev/stdout,
// /dev/stderr), which the kernel allows by owner and mode: those of the command's user, and those
// of the user that the command itself changes to (su). A name in /proc/PID/fd is out of reach for
// any other user. Where pipes have no mode, as under gVisor, everything else of a command works.
func permitReopen(pipe *os.File, mode uint32, credential *syscall.Credential) error {
	connection, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = connection.Control(func(fd uintptr) {
		failed = unix.Fchmod(int(fd), mode)
		if failed == unix.EPERM {
			failed = nil // the pipe is the daemon's own: the kernel cannot do it for any pipe
		}
		if failed == nil && credential != nil {
			// Without the right to give files away (CAP_CHOWN) the user may still write.
			_ = unix.Fchown(int(fd), int(credential.Uid), int(credential.Gid))
		}
	})
	if err == nil {
		err = failed
	}
	return err
}
