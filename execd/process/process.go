// Package process is what execd's programs share about processes: what a process of the sandbox's user gets to see, where its program is
// found, how its end is reported, and what a process of ours does to be out of reach of those. It imports next to nothing, because the
// first process of every sandbox links it.
package process

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownPrefix begins the name of every environment variable that belongs to execd alone.
const ownPrefix = "EXECD_"

// Environment returns the environment without the variables that belong to execd, in the same order, as a new slice. Processes of the
// sandbox's user get this one, so that neither the access token nor execd's settings leak into them.
func Environment(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, entry := range environ {
		if !strings.HasPrefix(entry, ownPrefix) {
			kept = append(kept, entry)
		}
	}
	return kept
}

// ExitCode returns the exit code of a process that has ended, as shells and container engines report it: 128+N after signal N.
func ExitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Shield keeps the memory, the environment and the open files of this process from every other process of the sandbox, root included, for
// as long as it executes this program. CAP_SYS_PTRACE, CAP_PERFMON and CAP_SYS_ADMIN get past that; engines give none of them by default.
func Shield() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return &failure{"keep other processes out of this one", err}
	}
	return nil
}

// failure is an error as fmt.Errorf makes it of a text and its cause; fmt alone is a quarter of the first process of a sandbox.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string { return f.text + ": " + f.cause.Error() }

func (f *failure) Unwrap() error { return f.cause }
