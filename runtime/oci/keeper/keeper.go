// Package keeper is the process that starts and reaps the containers of a local engine, one per
// data directory, and its client.
//
// The service may be killed or replaced at any moment while containers run. So what has to outlive
// it is in a process of its own, the keeper, which is small and does next to nothing:
//
//   - It is the subreaper that the first process of every container becomes a child of, reaps it at once and writes down how it ended.
//   - It has the mount namespace in which OCI runtimes are started, and in which the overlay of a container is mounted while it is created.
//   - It moves what containers print from their FIFO to a bounded log.
//   - It makes user namespaces, which takes a process each: one of its own size is started ten times as fast as one of the service's.
//
// A keeper that is killed loses neither: [Client] starts another one, which watches the containers
// that run. Both programs may be killed at once; then the exit status comes from the container's
// exit file.
package keeper

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/oci/overlay"
)

// Options say where the keeper is, and how to start it.
type Options struct {
	// Program is the absolute path of the program sandbox-keeper. A keeper that runs another
	// program is replaced.
	Program string
	// Directory has the keeper's socket and lock. It is absolute, and made with mode 0700 when it
	// is missing.
	Directory string
	// CgroupDirectories are those that a keeper moves itself to when it starts, so that it does not
	// end with the service's cgroup. They exist. There may be none.
	CgroupDirectories []string
	Logger            zerolog.Logger
	// Exited is called once per end of a container that was launched or adopted and not forgotten,
	// one call at a time, also for ends that happened while no service ran. The call for a short
	// container may come before Launch has returned. It must be quick.
	Exited func(id string, end End)
}

// Watched is what a keeper has to know of a container to watch it, whoever has started it. Paths
// are absolute.
type Watched struct {
	ID string
	// Output is the FIFO that the container gets as standard output and error. It is made again for
	// each run.
	Output string
	// Log gets what comes out of Output. At LogBytes bytes it becomes Log + ".1", in the place of
	// the one before; 0 means [engine.DefaultLogBytes].
	Log      string
	LogBytes int64
	// ExitFile, if not empty, is a file that the container gets as descriptor 3, and to which its
	// first process writes its exit status as a decimal number: it counts when the kernel no longer
	// has the status. It is made or emptied.
	ExitFile string
	// EndFile gets the End, as JSON. It is removed before a launch.
	EndFile string
}

// Launch says how to start a container. Paths are absolute.
type Launch struct {
	Watched
	// Overlay is mounted at Root in the keeper's mount namespace before Run, and detached after it:
	// from then on the container's own namespace has it. With an empty Root nothing is mounted.
	Overlay overlay.Overlay
	Root    string
	// Run is the command line of the runtime that starts the container and ends; the first word is
	// a path. It writes the process id of the container's first process to PIDFile.
	Run     []string
	PIDFile string
	// Sealed is set for a runtime that runs a sealed copy of itself: it is started as one.
	Sealed bool
	// CgroupDirectories are those, at most one per hierarchy, that Run is started in, and so
	// everything that it starts: what it leaves behind when it is killed is found there, and the
	// container's cgroup namespace begins there. The name in messages is that of a keeper that runs
	// already.
	CgroupDirectories []string `json:"Enter"`
	// Owner is the user and group that Output belongs to: the container's root.
	Owner int
}

// Running is a container that runs.
type Running struct {
	Watched
	Process Process
}

// Process identifies the first process of a container.
type Process struct {
	PID int `json:"pid"`
	// StartTime is field 22 of proc_pid_stat(5), in clock ticks after boot.
	StartTime uint64 `json:"startTime"`
}

// End is how the first process of a container ended.
type End struct {
	ExitCode int       `json:"exitCode"` // 128+N after signal N
	Signal   int       `json:"signal"`   // 0 when it exited by itself
	At       time.Time `json:"at"`
}

// Stage is a part of a launch.
type Stage string

// The stages of a launch, in order.
const (
	StageOutput Stage = "output" // the FIFO, the exit file and the log
	StageMount  Stage = "mount"
	StageRun    Stage = "run" // of the runtime's command
)

// RuntimeError is why a container was not started.
type RuntimeError struct {
	Stage Stage `json:"stage"`
	// ExitCode is that of the runtime's command, 128+N after signal N; 0 when no command has
	// failed.
	ExitCode int `json:"exitCode,omitempty"`
	// Stderr is what the command printed, or the cause when there is none; at most 8 KiB.
	Stderr string `json:"stderr,omitempty"`
}

func (e *RuntimeError) Error() string {
	if e.ExitCode == 0 {
		return fmt.Sprintf("start of the container, stage %s: %s", e.Stage, e.Stderr)
	}
	return fmt.Sprintf("start of the container, stage %s: exit code %d: %s", e.Stage, e.ExitCode, e.Stderr)
}

const (
	socketName = "keeper.sock"
	lockName   = "keeper.lock"
	stderrName = "keeper.stderr"

	// parallelLaunches is how many containers are started at the same time; more would only wait
	// for the processors.
	parallelLaunches = 8
	// stderrBytes bounds RuntimeError.Stderr.
	stderrBytes = 8 << 10
)
