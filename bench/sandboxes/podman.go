package sandboxes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// podman runs containers without a daemon: it is measured for comparison with the local engine, and
// is no floor. It has directories, a mount namespace and a network namespace of its own, so nothing
// of it stays on the host.
type podman struct {
	holder *exec.Cmd // keeps the namespaces
	args   []string  // of every command, before what it is to do
}

// podmanSetup is what the holder does first. crun under Podman refuses a host with control groups
// of both versions, until it does not see those of version 2.
const podmanSetup = `
umount /sys/fs/cgroup/unified 2>/dev/null
ip link set lo up
mkdir -p /var/lib/cni && mount -t tmpfs tmpfs /var/lib/cni
mount -t tmpfs tmpfs /run
echo ready
exec cat`

// measurePodman measures create and start of a container with Podman and crun, as the floor has it
// from Docker.
func measurePodman(ctx context.Context, run *measure.Run) (took measure.Sample, err error) {
	program, err := exec.LookPath("podman")
	if err != nil {
		run.Progress("Podman is not installed, so the local rows have no rival")
		return measure.Sample{}, nil
	}
	archives, err := rig.ArchiveDirectory()
	if err != nil {
		return measure.Sample{}, err
	}
	p, err := startPodman(ctx, program, filepath.Join(run.Dir, "podman"))
	if err != nil {
		return measure.Sample{}, err
	}
	defer func() { err = errors.Join(err, p.stop(context.WithoutCancel(ctx))) }()
	if _, err := p.run(ctx, "load", "--quiet", "--input", filepath.Join(archives, "base.tar")); err != nil {
		return measure.Sample{}, err
	}
	for i := range run.Rounds(10, 2) + 1 {
		began := time.Now()
		// The limits of open files and processes that it sets otherwise take CAP_SYS_RESOURCE.
		id, err := p.run(ctx, "run", "--detach", "--runtime", "crun", "--memory", rig.SandboxMemory+"m",
			"--pids-limit", rig.SandboxPIDs, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--publish", "127.0.0.1::44772",
			rig.BaseImage, "sleep", "infinity")
		if err != nil {
			return measure.Sample{}, err
		}
		if i > 0 { // warm
			took.Add(measure.Elapsed(began))
		}
		if _, err := p.run(ctx, "rm", "--force", "--time", "0", id); err != nil {
			return measure.Sample{}, err
		}
	}
	return took, nil
}

func startPodman(ctx context.Context, program, directory string) (*podman, error) {
	holder := exec.CommandContext(ctx, "unshare", "--mount", "--net", "sh", "-c", podmanSetup)
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if _, err := holder.StdinPipe(); err != nil { // it stays until this is closed
		return nil, err
	}
	output, err := holder.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := holder.Start(); err != nil {
		return nil, fmt.Errorf("namespaces for podman: %w", err)
	}
	var said [6]byte
	if n, err := output.Read(said[:]); err != nil || string(said[:n]) != "ready\n" {
		return nil, errors.Join(fmt.Errorf("namespaces for podman: %q", said[:n]), err, holder.Process.Kill(), holder.Wait())
	}
	return &podman{holder: holder, args: []string{
		"--target", strconv.Itoa(holder.Process.Pid), "--mount", "--net", program,
		"--root", filepath.Join(directory, "root"), "--runroot", filepath.Join(directory, "run"),
		"--tmpdir", filepath.Join(directory, "tmp"), "--network-config-dir", filepath.Join(directory, "net"),
		"--cgroup-manager", "cgroupfs", "--events-backend", "none",
	}}, nil
}

// run returns what a command of Podman prints.
func (p *podman) run(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "nsenter", append(p.args, args...)...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("podman %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(output)), nil
}

// stop removes every container and image, and with the holder the network.
func (p *podman) stop(ctx context.Context) error {
	_, err := p.run(ctx, "system", "reset", "--force")
	err = errors.Join(err, p.holder.Process.Kill())
	_ = p.holder.Wait() // it was killed
	return err
}
