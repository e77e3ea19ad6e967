package process

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// defaultPath is the PATH that container engines use when the image sets none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// usualPath is where Find looks after the PATH.
	usualPath = "/usr/local/bin:/usr/bin:/bin"
)

// Path returns the PATH of an environment, or the one of container engines when it has none.
func Path(env []string) string {
	if path, found := Variable(env, "PATH"); found {
		return path
	}
	return defaultPath
}

// LookPath finds the executable of a container's command line as a shell would: a name with a slash
// is a path relative to the working directory, any other is searched for in the PATH of env, where
// an empty element means the working directory. Errors are those that [StartFailure] takes.
// exec.LookPath does not fit: it reads the PATH of this process and refuses results relative to the
// working directory.
func LookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := Path(env)
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

// Find returns the path of a program that a client names, "" when there is none: a path, which may
// be relative to dir, or a name, which is searched for in the absolute directories of the PATH of
// env and then in the usual ones, because a client that sets PATH may leave them out.
func Find(name, dir string, env []string) string {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return executable(name)
	}
	path, _ := Variable(env, "PATH")
	for _, directory := range filepath.SplitList(path + ":" + usualPath) {
		if !filepath.IsAbs(directory) {
			continue
		}
		if found := executable(filepath.Join(directory, name)); found != "" {
			return found
		}
	}
	return ""
}

// Shell returns the path of bash, else of sh, else "".
func Shell(env []string) string {
	for _, name := range []string{"bash", "sh"} {
		if path := Find(name, "/", env); path != "" {
			return path
		}
	}
	return ""
}

// executable returns the path if there is a program at it, else "".
func executable(path string) string {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return ""
	}
	return path
}
