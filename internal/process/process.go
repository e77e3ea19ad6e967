// Package process holds what execd's programs do with processes: environments, the search for
// programs, signals, ends and exit codes, identities that outlive a process number, and what keeps
// a process of ours apart from those of the sandbox's user.
//
// It imports neither fmt nor os/exec: process 1 of every sandbox links it.
package process

import "golang.org/x/sys/unix"

// Shield keeps the memory, the environment and the open files of this process from every other
// process of the sandbox, root included, for as long as it executes this program. CAP_SYS_PTRACE,
// CAP_PERFMON and CAP_SYS_ADMIN get past that; engines give none of them by default.
func Shield() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return &failure{"keep other processes out of this one", err}
	}
	return nil
}

// failure is an error as fmt.Errorf makes it of a text and its cause; fmt alone would be a quarter
// of process 1.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string { return f.text + ": " + f.cause.Error() }

func (f *failure) Unwrap() error { return f.cause }
