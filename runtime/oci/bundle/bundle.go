// Package bundle writes what an OCI runtime is given to make a container: a config.json of the
// runtime specification, from an [engine.ContainerSpec] and the configuration of its image. It
// has a table of the runtimes and how they differ.
//
// A container is confined as Docker confines it by default, and more where that costs nothing.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/runtime/engine"
)

// Input is everything that decides about a container.
type Input struct {
	ID     string
	Spec   engine.ContainerSpec
	Image  Config
	Layers []string // absolute directories of the image, lowest first
	// Written are absolute directories of what this container, or those whose snapshots it lies on,
	// have written on top of the layers, lowest first. They decide where paths lead, and not about
	// the user.
	Written []string
	RootFS  string // absolute; where the root file system will be mounted
	// NetNS is the path of the network namespace; empty for the host's with [engine.NetworkHost],
	// and for a new one with [engine.NetworkNone].
	NetNS  string
	Mounts []Mount // the mounts that Spec.Mounts stands for
	// Users are the host's ids that those of the container are, in a user namespace of its own;
	// none without one. Then RootFS and the sources of mounts are reached by the first of them, and
	// show the container's files as theirs. The kernel parameters of NetNS are set already.
	Users Users
	// UserNS is the path of a user namespace with Users; when it is empty, the runtime makes one.
	UserNS string
	// Sys is a sysfs of the container's network, absolute, which in a user namespace the runtime
	// cannot mount; empty when it can.
	Sys string
	// CgroupsPath is the container's control group, relative to the root of the hierarchies.
	CgroupsPath string
	// EtcDirectory holds the container's hosts, hostname, resolv.conf and machine-id; those that
	// are missing are the image's.
	EtcDirectory string
	// EtcSource is the path of EtcDirectory for the runtime; empty when that is the same.
	EtcSource string
	Runtime   Runtime
	// Devices are those that Spec.Resources.GPUs stands for; their mounts are among Mounts.
	Devices Devices
}

// Devices is what a container with devices of the host has more than others.
type Devices struct {
	Env    []string // NAME=VALUE; they count more than those of the container
	Nodes  []specs.LinuxDevice
	Rules  []specs.LinuxDeviceCgroup // access to the nodes
	Groups []uint32                  // more groups of the first process, of the host
	Hooks  *specs.Hooks
}

// shown are the directories that the container's root shows, lowest first.
func (in Input) shown() []string {
	return slices.Concat(in.Layers, in.Written)
}

// Config is the part of an image's configuration that decides about its containers.
type Config struct {
	Env, Entrypoint, Cmd []string
	User, WorkingDir     string
	StopSignal           string
	Labels               map[string]string
}

// Users are ids of the host: First is the container's 0, and there are Count of them. The last ones
// are those of Beyond, in the order of that, which are ids of the container that are larger.
type Users struct {
	First, Count uint32
	Beyond       []uint32
}

// own is how many ids of the container there are from 0 on.
func (u Users) own() uint32 { return u.Count - uint32(len(u.Beyond)) } //nolint:gosec // few

func (u Users) has(id uint32) bool { return id < u.own() || slices.Contains(u.Beyond, id) }

// Mount is a directory or file of the host in the container.
type Mount struct {
	Source   string // absolute
	Target   string // absolute, in the container
	ReadOnly bool
	File     bool // Source is no directory; nothing can be mounted below
	// FollowLinks mounts where symbolic links of the image lead. Any other mount is refused there.
	FollowLinks bool
}

// configFile is the name that the runtime specification gives.
const configFile = "config.json"

// Write writes dir/config.json. The errors wrap [engine.ErrInvalid] when the container cannot be as
// the input wants it. Write refuses everything that [Check] refuses.
func Write(dir string, in Input) error {
	if err := Check(in); err != nil {
		return err
	}
	spec, err := build(in)
	if err != nil {
		return err
	}
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode %s: %w", configFile, err)
	}
	// Environments hold secrets.
	if err := os.WriteFile(filepath.Join(dir, configFile), content, 0o600); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

// invalid is an error about a field of the container's specification.
func invalid(field, format string, arguments ...any) error {
	return fmt.Errorf("%w: %s: %w", engine.ErrInvalid, field, fmt.Errorf(format, arguments...))
}
