package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Runtime is an OCI runtime on this host, and how it differs from others.
type Runtime struct {
	Name    string // the product: crun, runc or runsc
	Path    string // absolute
	Version string
	// JoinsCgroup is whether the runtime itself puts containers into [Input].CgroupsPath, which
	// must exist. Others are started inside the groups.
	JoinsCgroup bool
	// PassesFiles is whether containers can be given a descriptor (exitFD of RunArgs).
	PassesFiles bool
	// Delete is whether the runtime keeps processes for a container, which only its own command
	// ends. For others it is enough to remove the directory of their state.
	Delete bool
	// Pauses is whether only the runtime's own commands freeze a container: its processes do not
	// survive being frozen by their control group.
	Pauses bool
	// MapsUsers is whether it makes containers with a user namespace whose mounts have been mapped.
	MapsUsers bool
	// LimitsFromOutside is whether it sets the limits of a container (setrlimit(2)) from outside of
	// its user namespace: for one that belongs to another user that takes CAP_SYS_RESOURCE.
	LimitsFromOutside bool
	// OwnKernel is whether containers have a kernel of the runtime's own, and with it a network
	// stack that cannot be the host's.
	OwnKernel bool
	// KeepsMemory is whether the runtime can keep the processes of a container in files, and start
	// them from there.
	KeepsMemory bool
	// RunsSealed is whether the runtime runs from a copy of its program that no container can write
	// to, and makes one unless it finds that it was started from a sealed file in memory.
	RunsSealed bool

	global            []string // flags of every command
	takesFilter       bool     // a compiled seccomp filter
	recursiveReadOnly bool     // the mount option rro
}

// specVersion is the version of the runtime specification that every runtime accepts.
const specVersion = "1.0.2"

// runtimes are the products, and what is known about them.
var runtimes = []Runtime{
	{
		Name: "crun", PassesFiles: true, MapsUsers: true, RunsSealed: true,
		takesFilter: true, recursiveReadOnly: true,
		// The groups are ours; and it refuses hosts with both versions of control groups.
		global: []string{"--cgroup-manager=disabled"},
	},
	{
		Name: "runc", JoinsCgroup: true, PassesFiles: true, MapsUsers: true, RunsSealed: true,
		LimitsFromOutside: true,
		recursiveReadOnly: true,
	},
	{
		Name: "runsc", Delete: true, Pauses: true, OwnKernel: true, KeepsMemory: true,
		// What a container writes goes to the root file system that it is given, not to a layer of
		// runsc's own.
		global: []string{
			"--platform=systrap", "--network=sandbox", "--overlay2=none", "--ignore-cgroups",
		},
	},
}

// searched are the directories of programs that a service's PATH may lack.
var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// versionTime is how long a runtime may take to print its version.
const versionTime = 10 * time.Second

var versionLine = regexp.MustCompile(`^(crun|runc|runsc) version (\S+)`)

// Find returns the runtime of the name, or at the absolute path, and asks for its version.
func Find(handler string) (Runtime, error) {
	path, err := locate(handler)
	if err != nil {
		return Runtime{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	output, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr[:min(len(exit.Stderr), 1000)]))
		}
		return Runtime{}, fmt.Errorf("OCI runtime %s: --version: %w", path, err)
	}
	match := versionLine.FindSubmatch(output)
	if match == nil {
		return Runtime{}, fmt.Errorf("OCI runtime %s: it is none of crun, runc and runsc: --version printed %.100q",
			path, output)
	}
	at := slices.IndexFunc(runtimes, func(r Runtime) bool { return r.Name == string(match[1]) })
	found := runtimes[at]
	found.Path, found.Version = path, string(match[2])
	return found, nil
}

func locate(handler string) (string, error) {
	if filepath.IsAbs(handler) {
		if _, err := exec.LookPath(handler); err != nil {
			return "", fmt.Errorf("OCI runtime: %w", err)
		}
		return handler, nil
	}
	if handler == "" || filepath.Base(handler) != handler {
		return "", fmt.Errorf("OCI runtime: %q is neither a name nor an absolute path", handler)
	}
	if path, err := exec.LookPath(handler); err == nil {
		return filepath.Abs(path)
	}
	for _, directory := range searched {
		if path, err := exec.LookPath(filepath.Join(directory, handler)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("OCI runtime: there is no program %s in PATH, nor in %v", handler, searched)
}

// RunArgs is the command that creates the container from the bundle, starts its program, writes its
// process id, and ends: one process less than create and start. root is where the runtime keeps its
// state. With exitFD the container inherits descriptor 3.
func (r Runtime) RunArgs(root, bundleDir, pidFile, id string, exitFD bool) []string {
	command := append(r.command(root, "run"), "--detach", "--bundle", bundleDir, "--pid-file", pidFile)
	if exitFD && r.PassesFiles {
		command = append(command, "--preserve-fds", "1")
	}
	return append(command, id)
}

// CheckpointArgs is the command that writes the processes of a container, which may be frozen, to
// files in a directory, for a runtime with KeepsMemory. The runtime writes what it has of the
// container's files in its own memory to these before. The container goes on as it was. With direct
// the files do not pass the host's cache, which would count as memory of the container.
func (r Runtime) CheckpointArgs(root, id, directory string, direct bool) []string {
	command := append(r.command(root, "checkpoint"), "--leave-running", "--compression=none", "--image-path", directory)
	if direct {
		command = append(command, "--direct")
	}
	return append(command, id)
}

// RestoreArgs is RunArgs for a container whose processes are those that CheckpointArgs has written
// to the directory. The runtime refuses a bundle that differs from the one that they were started
// with in more than may differ.
func (r Runtime) RestoreArgs(root, bundleDir, pidFile, id, directory string) []string {
	command := r.command(root, "restore")
	return append(command, "--detach", "--bundle", bundleDir, "--pid-file", pidFile, "--image-path", directory, id)
}

// DeleteArgs is the command that removes what the runtime keeps of a container whose processes have
// ended; nil when it is enough to remove the directory root/id.
func (r Runtime) DeleteArgs(root, id string) []string {
	if !r.Delete {
		return nil
	}
	return append(r.command(root, "delete"), "--force", id)
}

// PauseArgs is the command that freezes a container, for a runtime with Pauses.
func (r Runtime) PauseArgs(root, id string) []string { return append(r.command(root, "pause"), id) }

// ResumeArgs is the command that thaws it.
func (r Runtime) ResumeArgs(root, id string) []string { return append(r.command(root, "resume"), id) }

// StateArgs is the command that prints the state of the runtime specification, whose status is
// "paused" while a container is frozen.
func (r Runtime) StateArgs(root, id string) []string { return append(r.command(root, "state"), id) }

func (r Runtime) command(root, name string) []string {
	return slices.Concat([]string{r.Path, "--root", root}, r.global, []string{name})
}
