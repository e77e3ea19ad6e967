package initd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listenPatience is how long NewListener waits for a port that another process still holds: in a container that is started again, the
// processes of the last one may be on their way out.
const listenPatience = 5 * time.Second

// NewListener listens on an address, for Options.Listener.
func NewListener(address string) (*os.File, error) {
	for deadline := time.Now().Add(listenPatience); ; time.Sleep(50 * time.Millisecond) {
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the port of execd cannot be used: %w", err)
		}
		defer listener.Close()
		return listener.(*net.TCPListener).File()
	}
}

// Shield keeps the memory, the environment and the open files of this process from every other process of the sandbox, root included, for
// as long as it executes this program. CAP_SYS_PTRACE, CAP_PERFMON and CAP_SYS_ADMIN get past that; engines give none of them by default.
func Shield() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep other processes out of this one: %w", err)
	}
	return nil
}

// Handed returns the file that init has handed to its daemon under this variable, nil when there is none. No program that the daemon
// starts gets it.
func Handed(variable string) (*os.File, error) {
	number := os.Getenv(variable)
	if number == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 0 {
		return nil, fmt.Errorf("environment variable %s: must be the number of an open file, got %q", variable, number)
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), variable), nil
}
