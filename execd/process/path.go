package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// What shells and container engines answer for a command that did not start.
const (
	codeNotExecutable = 126
	codeNotFound      = 127
)

// defaultPath is the PATH that container engines use when the image sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// LookPath finds an executable as a shell would: a name with a slash is a path relative to the working directory, any other is searched
// for in the PATH of env, where an empty element means the working directory. Its errors are those that [StartFailure] takes.
// exec.LookPath does not fit: it reads the PATH of this process and refuses results relative to the working directory.
func LookPath(name string, env []string) (string, error) {
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
			denied = &failure{candidate, err}
			continue
		}
		return candidate, nil
	}
	if denied != nil {
		return "", denied
	}
	return "", &failure{"not found in PATH (" + path + ")", unix.ENOENT}
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

// StartFailure returns the exit code of a shell or a container engine for a program that did not start: 127 when it does not exist, 126
// when it cannot be executed.
func StartFailure(err error) int {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return codeNotFound
	}
	return codeNotExecutable
}
