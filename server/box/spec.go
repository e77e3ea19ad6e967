package box

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Labels of our containers. With labelRecord the records can be rebuilt from the engine alone.
const (
	labelID        = lifecycle.LabelPrefix + "id" // of the sandbox
	labelBox       = lifecycle.LabelPrefix + "box"
	labelInstance  = lifecycle.LabelPrefix + "instance"
	labelExpiresAt = lifecycle.LabelPrefix + "expires-at"
	labelRecord    = lifecycle.LabelPrefix + "record"
	// labelPort is on containers that share the host's network: the port of their execd.
	labelPort = lifecycle.LabelPrefix + "execd-port"
)

const (
	// loopback is the one address that execd listens on when a sandbox shares the host's network.
	loopback = "127.0.0.1"
	// Ports for execd are chosen below those that Linux gives to outgoing connections by default:
	// such a connection could otherwise take the port while execd is being restarted.
	lowestPort, highestPort = 20000, 32767
)

// stopSignalVariable says which signal the image wants its entrypoint to be stopped with:
// execd-init, which gets SIGTERM, sends it on.
const stopSignalVariable = "EXECD_STOP_SIGNAL"

func containerName(box string) string { return "sandbox-" + box }

// fitsHost refuses what the engine's host does not have.
func (c *Containers) fitsHost(spec lifecycle.Spec) error {
	limits, err := spec.Resources.Parse()
	if err != nil {
		return err
	}
	if cores := int64(c.info.CPUs); limits.NanoCPUs > cores*1e9 {
		return lifecycle.BoxFailuref(lifecycle.ReasonResourceLimit,
			"resourceLimits.cpu: %s is more than the host's %d cores", spec.Resources["cpu"], cores)
	}
	if memory := c.info.MemoryBytes; limits.MemoryBytes > memory {
		return lifecycle.BoxFailuref(lifecycle.ReasonResourceLimit,
			"resourceLimits.memory: %s is more than the host's %d MiB", spec.Resources["memory"], memory>>20)
	}
	return nil
}

func (c *Containers) containerSpec(record lifecycle.Record, imageID, directory string) (engine.ContainerSpec, error) {
	limits, err := record.Spec.Resources.Parse()
	if err != nil {
		return engine.ContainerSpec{}, err
	}
	encoded, err := encodeRecord(record)
	if err != nil {
		return engine.ContainerSpec{}, fmt.Errorf("encode the record: %w", err)
	}
	env := map[string]string{"EXECD_ACCESS_TOKEN": record.Token}
	for name, value := range record.Spec.Env {
		env[name] = value
	}
	if record.StopTime > 0 {
		env["EXECD_STOP_GRACE"] = stopGrace.String()
	}
	mounts := []engine.Mount{{Directory: directory, Target: lifecycle.DaemonPath, ReadOnly: true}}
	for i, v := range record.Spec.Volumes {
		mount, err := c.hostPaths.Mount(i, v)
		if err != nil {
			return engine.ContainerSpec{}, err
		}
		mounts = append(mounts, mount)
	}
	spec := engine.ContainerSpec{
		Name:    containerName(record.Box),
		ImageID: imageID,
		Runtime: record.Runtime,
		Labels: map[string]string{
			labelID:        record.Sandbox.ID,
			labelBox:       record.Box,
			labelInstance:  c.options.Instance,
			labelExpiresAt: record.Sandbox.ExpiresAt.Format(time.RFC3339),
			labelRecord:    encoded,
		},
		Env:                env,
		StopSignalVariable: stopSignalVariable,
		Mounts:             mounts,
		Resources: engine.Resources{
			NanoCPUs:    limits.NanoCPUs,
			MemoryBytes: limits.MemoryBytes,
			PIDs:        c.options.PIDsLimit,
			GPUs:        limits.GPUs, // lifecycle.AllGPUs is engine.AllGPUs

			SharedMemoryBytes: limits.SharedMemoryBytes(),
		},
		ShowLimits: true,
		Security:   c.options.Security,
		KeepFiles:  true,
	}
	if record.Spec.SnapshotID != "" {
		spec.Snapshot = snapshotName(record.Spec.SnapshotID)
	}
	flags, err := c.connect(record, &spec)
	if err != nil {
		return engine.ContainerSpec{}, err
	}
	command := []string{filepath.Join(lifecycle.DaemonPath, "execd-init")}
	spec.Entrypoint = slices.Concat(command, record.Spec.DaemonFlags(), flags, []string{"--"}, record.Sandbox.Entrypoint)
	return spec, nil
}

// connect says how the container is connected, and returns the flags for its execd.
func (c *Containers) connect(record lifecycle.Record, spec *engine.ContainerSpec) (flags []string, err error) {
	if record.Sidecar != nil {
		joinSidecar(record.Box, spec)
		return nil, nil
	}
	if owner, _ := networkOwner(record); owner != "" {
		spec.Join = owner
		return nil, nil
	}
	if !record.HostNetwork {
		spec.Publish, spec.PublishIP = []int{lifecycle.DaemonPort}, c.options.PublishIP
		return nil, nil
	}
	port, err := freePort()
	if err != nil {
		return nil, lifecycle.BoxFailuref(lifecycle.ReasonNetworkError, "%v", err)
	}
	spec.Network = engine.NetworkHost
	spec.Labels[labelPort] = strconv.Itoa(port)
	return []string{"--host=" + loopback, "--port=" + strconv.Itoa(port)}, nil
}

// freePort returns a port of this machine's loopback interface that no process listens on.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free port on %s: %w", loopback, err)
}

// portOf returns the port at which the container's execd is reached, 0 while it has none. Whether
// the sandbox shares the host's network is from its record: the configuration may have changed
// since, and the label may be one of its image's.
func portOf(container engine.Container, hostNetwork bool) int {
	if !hostNetwork {
		return container.Ports[lifecycle.DaemonPort]
	}
	port, _ := strconv.Atoi(container.Labels[labelPort]) // the label is ours
	return port
}
