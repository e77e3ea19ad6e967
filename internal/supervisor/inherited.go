package supervisor

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The functions below are for the program that Run keeps running. Prefix is Options.Prefix. No
// process that the program starts gets the files that they return. Each may be called once. The
// error names a variable that does not hold the number of an open file.

// Ready returns the function that reports that the program works. Outside of a supervisor it does
// nothing.
func Ready(prefix string) (report func(), err error) {
	pipe, err := inherited(prefix + readySuffix)
	if err != nil || pipe == nil {
		return func() {}, err
	}
	return func() {
		// When the supervisor has ended it reads no report.
		_, _ = pipe.Write([]byte{1})
		_ = pipe.Close()
	}, nil
}

// Started returns the function that waits until the entrypoint was started, and reports whether it
// could be. It reports so at once outside of a supervisor, and where the program does not have to
// wait.
func Started(prefix string) (wait func() bool, err error) {
	pipe, err := inherited(prefix + startedSuffix)
	if err != nil || pipe == nil {
		return func() bool { return true }, err
	}
	return func() bool {
		defer pipe.Close()
		n, _ := pipe.Read(make([]byte, 1))
		return n == 1
	}, nil
}

// Listener returns Options.Listener, nil when there is none.
func Listener(prefix string) (*os.File, error) { return inherited(prefix + listenerSuffix) }

// State returns Options.State, nil when there is none.
func State(prefix string) (*os.File, error) { return inherited(prefix + stateSuffix) }

// Restarts reports how often the program was started before, and whether there is a supervisor.
func Restarts(getenv func(string) string, prefix string) (count int, supervised bool) {
	text := getenv(prefix + restartsSuffix)
	count, _ = strconv.Atoi(text) // only a supervisor sets it
	return count, text != ""
}

func inherited(variable string) (*os.File, error) {
	number := os.Getenv(variable)
	if number == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 0 {
		return nil, errors.New("environment variable " + variable + ": must be the number of an open file, got " + strconv.Quote(number))
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), variable), nil
}

// NewState returns a file in memory, for Options.State.
func NewState() (*os.File, error) {
	fd, err := unix.MemfdCreate("execd-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "execd-state"), nil
}
