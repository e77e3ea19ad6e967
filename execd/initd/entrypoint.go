package initd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox.internal/execd/config"
)

// What shells and container engines answer for a command that did not start.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// defaultPath is the PATH that container engines use when the image sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// startEntrypoint starts the entrypoint as the leader of a new session, with the terminal as the controlling one if
// there is a terminal, so that a shell has job control. startFailure turns its error into an exit code.
func startEntrypoint(o Options, terminal bool) (int, error) {
	if len(o.Entrypoint) == 0 || o.Entrypoint[0] == "" {
		return 0, fmt.Errorf("the entrypoint is empty: %w", unix.ENOENT)
	}
	name := o.Entrypoint[0]
	path, err := lookPath(name, o.Env)
	if err != nil {
		return 0, fmt.Errorf("cannot start the entrypoint %q: %w", name, err)
	}
	pid, err := syscall.ForkExec(path, o.Entrypoint, &syscall.ProcAttr{
		Env:   config.SandboxEnv(o.Env),
		Files: []uintptr{o.Stdin.Fd(), o.Stdout.Fd(), o.Stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: terminal},
	})
	if errors.Is(err, unix.ENOENT) && exists(path) {
		err = fmt.Errorf("%s exists, but the interpreter or loader that it names does not: %w", path, err)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot start the entrypoint %q: %w", name, err)
	}
	return pid, nil
}

// lookPath finds the executable as a shell would: a name with a slash is a path relative to the working directory,
// any other is searched for in PATH, where an empty element means the working directory. exec.LookPath does not fit:
// it reads the PATH of this process and refuses results relative to the working directory.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := searchPath(env)
	var denied error
	for _, dir := range strings.Split(path, ":") {
		candidate := filepath.Join(dir, name)
		info, err := os.Stat(candidate)
		if err != nil || info.IsDir() {
			continue
		}
		if err := unix.Access(candidate, unix.X_OK); err != nil {
			denied = fmt.Errorf("%s: %w", candidate, err)
			continue
		}
		return candidate, nil
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("not found in PATH (%s): %w", path, unix.ENOENT)
}

// searchPath returns the value of the last PATH in the environment, which is the one that execve's users see.
func searchPath(env []string) string {
	path := defaultPath
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startFailure is the container's exit code when the entrypoint did not start.
func startFailure(err error) int {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return codeNotFound
	}
	return codeNotExecutable
}

// exitCode is the container's exit code. PID 1 cannot die of a signal that it sends to itself, so a death by signal
// is told the way that shells and container engines show it.
func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
