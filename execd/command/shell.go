package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/process"
)

// maxArgument is how many bytes of a command line are given to the shell as an argument. The kernel
// takes no argument of 128 KiB (execve(2), MAX_ARG_STRLEN), and as little for all of them and the
// environment where the limit of the stack is low.
const maxArgument = 64 << 10

// A command line that is too long for an argument is a file, which the shell gets as the first
// descriptor behind the standard streams. It reads it with the $0 and the standard input that it
// has with -c. It has a descriptor of its own for the file when the first line closes the one that
// it was given, which no program that it starts is to have.
const (
	linePath  = "/proc/self/fd/3"
	readLine  = ". " + linePath
	closeLine = "exec 3<&-; "
)

// shell gives the process that runs a command line its program and arguments: bash, else sh, else
// the built-in interpreter, for images without a shell. done is to be called once the process has
// been started, or was not.
func (m *Manager) shell(prepared *exec.Cmd, line string) (done func(), err error) {
	path := process.Shell(prepared.Env)
	prepared.Args = []string{path, "-c", line}
	if path == "" {
		prepared.Args = append(slices.Clone(m.options.BuiltinShell), "-c", line)
	}
	prepared.Path, done = prepared.Args[0], func() {}
	if len(line) <= maxArgument {
		return done, nil
	}
	last := len(prepared.Args) - 1
	if path == "" {
		prepared.Args[last-1], prepared.Args[last] = linePath, ""
		prepared.Args = prepared.Args[:last]
	} else {
		prepared.Args[last] = readLine
		line = closeLine + line
	}
	file, err := lineFile(line)
	if err != nil {
		return nil, fmt.Errorf("give the shell its command line: %w", err)
	}
	prepared.ExtraFiles = []*os.File{file} // becomes descriptor 3
	return func() { file.Close() }, nil    // nothing can be lost by an error: the process has its own, or there is none
}

// lineFile returns a file in memory with a command line, which any user may read: the command's may
// not be the daemon's. The memory is the sandbox's, and goes back when no process has the file open
// any more.
func lineFile(line string) (*os.File, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "command")
	if _, err = file.WriteString(line); err == nil {
		err = file.Chmod(0o444)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
