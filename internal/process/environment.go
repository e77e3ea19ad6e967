package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ownPrefix begins the name of every environment variable that belongs to execd alone.
const ownPrefix = "EXECD_"

// Environment returns the environment without the variables that belong to execd, in the same
// order, as a new slice. Processes of the sandbox's user get this one, so that neither the access
// token nor execd's settings leak into them.
func Environment(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, entry := range environ {
		if !strings.HasPrefix(entry, ownPrefix) {
			kept = append(kept, entry)
		}
	}
	return kept
}

// Variable returns a variable's value in an environment, and whether it is set. The last entry
// counts, as it does for the process that gets the environment from os/exec.
func Variable(env []string, name string) (value string, found bool) {
	for _, entry := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// AddVariables appends variables to an environment, sorted by name. The error names the variable
// that execve(2) has no form for.
func AddVariables(env []string, variables map[string]string) ([]string, error) {
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := variables[name]
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, errors.New(strconv.Quote(name) +
				": a name must be non-empty and without '=', and neither name nor value may contain a NUL byte")
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

// WorkingDirectory returns the absolute path that a client's working directory means: a leading ~
// stands for the HOME of env, and what is relative starts at base.
func WorkingDirectory(dir, base string, env []string) string {
	switch {
	case dir == "~" || strings.HasPrefix(dir, "~/"):
		home, _ := Variable(env, "HOME")
		if home == "" {
			home = "/"
		}
		return filepath.Join(home, dir[1:])
	case filepath.IsAbs(dir):
		return dir
	}
	return filepath.Join(base, dir)
}

// IsDirectory returns an error that says of a directory why no process can start in it.
func IsDirectory(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%q may not be entered by user %d, who runs execd", path, os.Geteuid())
	case err != nil || !info.IsDir():
		return fmt.Errorf("%q is not a directory", path)
	}
	return nil
}
