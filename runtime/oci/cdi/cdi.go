// Package cdi finds devices of this machine, such as GPUs, in specifications of the Container
// Device Interface, and what a container needs to use them.
package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"sandbox.internal/runtime/oci/bundle"
)

// Directories are those that the standard has for specifications: of two devices with the same
// name, the one of the later directory counts.
var Directories = []string{"/etc/cdi", "/var/run/cdi"}

// every is the name by which generators of specifications mean all devices of a kind together.
const every = "all"

// Devices are the devices of one kind. Every method reads the specifications again.
type Devices struct {
	kind  string
	cache *cdi.Cache
}

// New returns the devices of a kind, "vendor/class", that specifications in the directories have.
func New(kind string, directories []string) (*Devices, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directories...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read CDI specifications: %w", err)
	}
	return &Devices{kind: kind, cache: cache}, nil
}

// List returns the full names, "vendor/class=name", in the order of their numbers. Of names for the
// same device nodes it has the first. The error, of a specification that cannot be read, comes with
// the devices of the others.
func (d *Devices) List() ([]string, error) {
	err := d.refresh()
	var names []string
	for _, full := range d.cache.ListDevices() {
		if kind, name, _ := strings.Cut(full, "="); kind == d.kind && name != every {
			names = append(names, full)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	seen := map[string]bool{}
	names = slices.DeleteFunc(names, func(full string) bool {
		nodes := d.nodes(full)
		known := nodes != "" && seen[nodes]
		seen[nodes] = true
		return known
	})
	return names, err
}

// refresh reads the specifications again. The error names the files that cannot be read.
func (d *Devices) refresh() error {
	if d.cache.Refresh() == nil {
		return nil
	}
	failed, directories := d.cache.GetErrors(), d.cache.GetSpecDirErrors()
	var errs []error
	for _, path := range slices.Sorted(maps.Keys(failed)) {
		if _, missing := directories[path]; !missing {
			errs = append(errs, fmt.Errorf("%s: %w", path, errors.Join(failed[path]...)))
		}
	}
	return errors.Join(errs...)
}

// nodes are the device nodes of a device alone, one a line.
func (d *Devices) nodes(full string) string {
	device := d.cache.GetDevice(full)
	if device == nil {
		return ""
	}
	var nodes []string
	for _, node := range device.ContainerEdits.DeviceNodes {
		nodes = append(nodes, cmp.Or(node.HostPath, node.Path))
	}
	slices.Sort(nodes)
	return strings.Join(nodes, "\n")
}

// Edits returns what a container with the devices has more than others. Hooks are programs of the
// specification, which the OCI runtime runs as root of this machine.
func (d *Devices) Edits(names []string) (bundle.Devices, []bundle.Mount, error) {
	refreshed := d.refresh()
	edited := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
	if missing, err := d.cache.InjectDevices(&edited, names...); err != nil {
		if len(missing) > 0 {
			return bundle.Devices{}, nil, errors.Join(fmt.Errorf("no CDI specification has %s", strings.Join(missing, ", ")), refreshed)
		}
		return bundle.Devices{}, nil, fmt.Errorf("CDI specification: %w", err)
	}
	if edited.Linux.IntelRdt != nil || len(edited.Linux.NetDevices) > 0 {
		return bundle.Devices{}, nil, errors.New("CDI specification: intelRdt and netDevices are not supported")
	}
	devices := bundle.Devices{
		Env: edited.Process.Env, Nodes: edited.Linux.Devices, Groups: edited.Process.User.AdditionalGids, Hooks: edited.Hooks,
	}
	if edited.Linux.Resources != nil {
		devices.Rules = edited.Linux.Resources.Devices
	}
	for _, node := range devices.Nodes {
		if !strings.HasPrefix(node.Path, "/dev/") || filepath.Clean(node.Path) != node.Path {
			return bundle.Devices{}, nil, fmt.Errorf("CDI specification: the device node %q must be below /dev", node.Path)
		}
	}
	var mounts []bundle.Mount
	for _, mount := range edited.Mounts {
		if mount.Type != "" && mount.Type != "bind" || !filepath.IsAbs(mount.Source) || !filepath.IsAbs(mount.Destination) {
			return bundle.Devices{}, nil, fmt.Errorf("CDI specification: the mount at %q must be of a path of this machine", mount.Destination)
		}
		source, err := os.Stat(mount.Source)
		if err != nil {
			return bundle.Devices{}, nil, fmt.Errorf("CDI specification: mount at %q: %w", mount.Destination, err)
		}
		mounts = append(mounts, bundle.Mount{
			File:   !source.IsDir(),
			Source: mount.Source, Target: filepath.Clean(mount.Destination), FollowLinks: true,
			ReadOnly: slices.Contains(mount.Options, "ro") || !slices.Contains(mount.Options, "rw"),
		})
	}
	return devices, mounts, nil
}
