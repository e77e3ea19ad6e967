// Package probe is the hidden program "execd probe". The lifecycle service runs it in a throwaway
// container at its start, to see that limits and profiles work on this engine before it offers them
// to clients.
//
// It prints what it finds in lines of JSON, one after each step, so that the results until then are
// there even when a step ends it.
package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

const usage = "usage: execd probe BYTES PROCESSES: tries to use more memory and more processes than its container may"

// Names of the steps that run as processes of their own, because the kernel may end them.
const (
	stepEat  = "eat"
	stepFork = "fork"
	stepIdle = "idle"
)

// Exit codes of the steps.
const (
	exitDone    = 0 // nothing stopped it
	exitFailed  = 1
	exitUsage   = 2 // and Go's own when it cannot create a thread
	exitRefused = 3
)

// Confinement is what limits the process, as /proc and the control groups show it.
type Confinement struct {
	// CPUCores is the quota of CPU time, in cores; 0 when there is none.
	CPUCores float64 `json:"cpu_cores"`
	// NoNewPrivileges is whether no program can get privileges by being executed.
	NoNewPrivileges bool `json:"no_new_privileges"`
	// Seccomp is the kernel's number of the mode; 2 means that a profile filters system calls.
	Seccomp int `json:"seccomp"`
	// AppArmor is the profile as the kernel reports it, such as "docker-default (enforce)"; empty
	// without AppArmor.
	AppArmor string `json:"apparmor"`
}

// Processes is what came of starting too many processes.
type Processes struct {
	Refused bool `json:"processes_refused"`
}

// Memory is what came of using too much memory.
type Memory struct {
	Killed bool `json:"memory_killed"`
}

// Main runs the program with its arguments, the program's name and its own name left out, and
// returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	err := run(args, stdout)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(stderr, usage)
		return exitUsage
	case errors.Is(err, syscall.EAGAIN):
		return exitRefused
	case err != nil:
		fmt.Fprintf(stderr, "execd probe: %v\n", err)
		return exitFailed
	}
	return exitDone
}

var errUsage = errors.New("usage")

func run(args []string, stdout io.Writer) error {
	if len(args) == 1 && args[0] == stepIdle {
		return nil
	}
	if len(args) != 2 {
		return errUsage
	}
	second, err := strconv.Atoi(args[1])
	if err != nil || second < 1 {
		return errUsage
	}
	switch args[0] {
	case stepEat:
		return eat(second)
	case stepFork:
		return fork(second)
	}
	bytes, err := strconv.Atoi(args[0])
	if err != nil || bytes < 1 {
		return errUsage
	}
	return probe(bytes, second, json.NewEncoder(stdout))
}

func probe(bytes, processes int, encoder *json.Encoder) error {
	confinement, err := inspect("/proc/self", "/sys/fs/cgroup")
	if err != nil {
		return err
	}
	if err := encoder.Encode(confinement); err != nil {
		return err
	}
	if err := encoder.Encode(trySockets()); err != nil {
		return err
	}

	code, _, err := step(stepFork, processes)
	if err != nil {
		return err
	}
	// A step that the kernel refused a thread ends by Go's hand: that is the limit as well.
	if code != exitDone && code != exitRefused && code != exitUsage {
		return fmt.Errorf("the step %q ended with exit code %d", stepFork, code)
	}
	if err := encoder.Encode(Processes{Refused: code != exitDone}); err != nil {
		return err
	}
	reap()

	code, killed, err := step(stepEat, bytes)
	if err != nil {
		return err
	}
	if code != exitDone && !killed {
		return fmt.Errorf("the step %q ended with exit code %d", stepEat, code)
	}
	return encoder.Encode(Memory{Killed: killed})
}

// step runs this program again. killed is whether the kernel ended it, as its out-of-memory killer
// does.
func step(name string, number int) (code int, killed bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, false, err
	}
	command := exec.Command(self, "probe", name, strconv.Itoa(number))
	err = command.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return 0, false, fmt.Errorf("start the step %q: %w", name, err)
	}
	status := command.ProcessState.Sys().(syscall.WaitStatus)
	return status.ExitStatus(), status.Signaled() && status.Signal() == syscall.SIGKILL, nil
}

// reap takes away what the step before left to the first process of the container: a process that
// has ended counts as long as it has not been waited for.
func reap() {
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// eat uses memory. Pages that were not touched do not count.
func eat(bytes int) error {
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return fmt.Errorf("ask for %d bytes: %w", bytes, err)
	}
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	return nil
}

// fork starts processes and ends them at once; they go on counting, because they are not waited
// for. It returns EAGAIN when the kernel refused one.
func fork(processes int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range processes {
		pid, err := syscall.ForkExec(self, []string{"execd", "probe", stepIdle}, &syscall.ProcAttr{})
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}
