package supervisor

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// releaseTerminal gives up the controlling terminal, if standard input is one that this process
// leads, so that the entrypoint can take it over. From then on Ctrl-C and window changes go from
// the kernel to the entrypoint's session directly. It must run before notify: the kernel sends the
// leader SIGHUP and SIGCONT then, which are not for the entrypoint.
func releaseTerminal(stdin *os.File) (released bool) {
	fd := int(stdin.Fd())
	session, err := unix.IoctlGetInt(fd, unix.TIOCGSID)
	if err != nil || session != os.Getpid() {
		return false
	}
	signal.Ignore(unix.SIGHUP, unix.SIGCONT)
	return unix.IoctlSetInt(fd, unix.TIOCNOTTY, 0) == nil
}
