package supervisor

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitVariable is the environment variable with the number of an open file to which the first
// process of a container writes its exit status before it ends, as a decimal number and a newline.
// Engines without a process per container read it when the kernel no longer has the status.
const exitVariable = "EXECD_EXIT_FD"

// Exit runs the first process of a container and ends this process with the status that run
// returns. The status is written to the file that the variable EXECD_EXIT_FD names, if there is
// one; no other process gets the variable or the file. name is what messages begin with.
//
// It must be called before this process opens anything: the file of a number is taken for the one
// that was inherited.
func Exit(name string, run func() (status int)) {
	file, err := exitFile()
	if err != nil {
		Options{Name: name}.say(err.Error())
		os.Exit(exitUsage)
	}
	status := run()
	if file != nil {
		if _, err := file.WriteString(strconv.Itoa(status) + "\n"); err != nil {
			Options{Name: name}.say("exit status not written: " + err.Error())
		}
	}
	os.Exit(status)
}

// exitFile returns the file that the variable names, nil when it is not set, and removes the
// variable.
func exitFile() (*os.File, error) {
	text := os.Getenv(exitVariable)
	if err := os.Unsetenv(exitVariable); err != nil || text == "" {
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err == nil && fd > syscall.Stderr {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err == nil {
			return os.NewFile(uintptr(fd), exitVariable), nil
		}
	}
	return nil, errors.New("environment variable " + exitVariable + ": must be the number of an open file, 3 or more, got " + strconv.Quote(text))
}
