package docker

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/nat"

	"sandbox.internal/runtime/engine"
)

// containerConfig is what goes into the container, whatever host it runs on.
func containerConfig(spec engine.ContainerSpec) *container.Config {
	exposed := nat.PortSet{}
	for _, port := range spec.Publish {
		exposed[tcp(port)] = struct{}{}
	}
	env := make([]string, 0, len(spec.Env))
	for _, name := range slices.Sorted(maps.Keys(spec.Env)) {
		env = append(env, name+"="+spec.Env[name])
	}
	return &container.Config{
		Image:        spec.ImageID,
		Labels:       spec.Labels,
		Entrypoint:   spec.Entrypoint,
		Env:          env,
		ExposedPorts: exposed,
		// Stop promises SIGTERM, whatever the image asks for.
		StopSignal: "SIGTERM",
		// An image's own health check would run processes in the sandbox, and hang while it is
		// frozen.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
}

// hostConfig is how the host runs the container, all but the mounts. seccomp is the profile of a
// container whose spec names none.
func hostConfig(spec engine.ContainerSpec, seccomp string) *container.HostConfig {
	noInit := false // execd is the first process; an engine can be configured to add its own
	host := &container.HostConfig{
		Runtime:       spec.Runtime,
		NetworkMode:   networkMode(spec),
		PortBindings:  nat.PortMap{},
		IpcMode:       container.IPCModePrivate,
		ShmSize:       spec.Resources.SharedMemoryBytes, // 0 is the engine's default
		Init:          &noInit,
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		// A chatty sandbox must not fill the host's disk. The driver json-file would replace bytes
		// that are not UTF-8; this one keeps them, and Logs can read it back on every engine since
		// 18.09. Not compressed: a sandbox's rubbish is not worth the processor's time.
		LogConfig: container.LogConfig{
			Type: "local",
			Config: map[string]string{"max-size": logSize(spec), "max-file": "2",
				"compress": "false"},
		},
		CapDrop:     spec.Security.DropCapabilities,
		CapAdd:      spec.Security.AddCapabilities,
		Sysctls:     spec.Sysctls,
		SecurityOpt: securityOptions(spec.Security, seccomp),
		Resources: container.Resources{
			NanoCPUs: spec.Resources.NanoCPUs,
			Memory:   spec.Resources.MemoryBytes,
			// Equal to Memory means no swap: with swap on top the limit would not be one.
			MemorySwap: spec.Resources.MemoryBytes,
			Ulimits:    []*container.Ulimit{{Name: "nofile", Soft: maxFiles, Hard: maxFiles}},
		},
	}
	for _, port := range spec.Publish {
		host.PortBindings[tcp(port)] = []nat.PortBinding{{HostIP: spec.PublishIP}}
	}
	if spec.Resources.PIDs > 0 {
		host.Resources.PidsLimit = &spec.Resources.PIDs
	}
	if spec.Resources.GPUs != 0 { // the Docker Engine takes -1 for all of them, too
		host.Resources.DeviceRequests = []container.DeviceRequest{{
			Count:        spec.Resources.GPUs,
			Capabilities: [][]string{{"gpu"}},
		}}
	}
	return host
}

// maxFiles is how many open files a process has. Engines give a million, and not all that a socket
// among them holds is counted as memory of the container.
const maxFiles = 1 << 14

// defaultNetwork is the engine's network that containers join which name none.
const defaultNetwork = "bridge"

func networkMode(spec engine.ContainerSpec) container.NetworkMode {
	switch {
	case spec.Join != "":
		return container.NetworkMode("container:" + spec.Join)
	case spec.Network == engine.NetworkOwn:
		return defaultNetwork
	}
	return container.NetworkMode(spec.Network)
}

// securityOptions are the profiles of a container. Where the spec names no seccomp profile it gets
// the given one, or for "" the engine's.
func securityOptions(security engine.Security, seccomp string) []string {
	var options []string
	if security.NoNewPrivileges {
		options = append(options, "no-new-privileges")
	}
	if security.AppArmorProfile != "" {
		options = append(options, "apparmor="+security.AppArmorProfile)
	}
	if chosen := cmp.Or(security.SeccompProfile, seccomp); chosen != "" {
		options = append(options, "seccomp="+chosen)
	}
	return options
}

// logSize is the size of each of the two files that the engine keeps of a container's log, in
// bytes.
func logSize(spec engine.ContainerSpec) string {
	return strconv.FormatInt(cmp.Or(spec.LogBytes, engine.DefaultLogBytes), 10)
}

func tcp(port int) nat.Port {
	return nat.Port(strconv.Itoa(port) + "/tcp")
}
