package bundle

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/internal/limits"
)

const (
	sysTarget    = "/sys"
	sharedTarget = "/dev/shm"
)

// baseMounts are those that every container has, Docker's.
var baseMounts = []specs.Mount{
	{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
	{
		Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
		Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"},
	},
	{
		Destination: "/dev/pts", Type: "devpts", Source: "devpts",
		Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", maxTerminals},
	},
	{
		Destination: sysTarget, Type: "sysfs", Source: "sysfs", Options: sysOptions,
	},
	{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"ro", "nosuid", "noexec", "nodev"},
	},
	{
		Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
		Options: []string{"nosuid", "noexec", "nodev"},
	},
	{
		Destination: sharedTarget, Type: "tmpfs", Source: "shm",
		Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}, // and its size
	},
}

// maxTerminals bounds the pseudo terminals of a container. The host has 3072 for all
// (kernel.pty.max without kernel.pty.reserve), and what waits in one is not counted as memory of
// the container.
const maxTerminals = "max=128"

// sysOptions are those of a sysfs, which no container can write to.
var sysOptions = []string{"nosuid", "noexec", "nodev", "ro"}

// etcFiles are the files of /etc that are made for each container; machine-id only for one that
// would share it with others ([HasMachineID]).
var etcFiles = []string{"hosts", "hostname", "resolv.conf", "machine-id"}

// mounts returns them in the order in which they are made: a directory before what is mounted in
// it. Where symbolic links of the image lead is decided here, so that the runtime is given paths
// without any: it would follow them to what was mounted before.
func mounts(in Input) ([]specs.Mount, error) {
	image, err := openLayers(in.shown())
	if err != nil {
		return nil, err
	}
	defer image.close()
	if err := checkOwnTargets(image); err != nil {
		return nil, err
	}
	asked, err := targets(image, in.Mounts)
	if err != nil {
		return nil, err
	}
	bound, err := etcMounts(in, image, asked)
	if err != nil {
		return nil, err
	}
	shown, err := shownMounts(in, asked)
	if err != nil {
		return nil, err
	}
	bound = append(bound, shown...)
	for _, mount := range asked {
		if !filepath.IsAbs(mount.Source) {
			return nil, invalid("mount "+mount.Target, "source %q is not absolute", mount.Source)
		}
		// Whether it is there, only the runtime sees: sources can lie in its own mount namespace
		// alone.
		bound = append(bound, in.Runtime.bind(mount))
	}
	// One that is asked for replaces ours at the same place.
	all := slices.DeleteFunc(slices.Clone(baseMounts), func(ours specs.Mount) bool {
		return slices.ContainsFunc(asked, func(mount Mount) bool { return mount.Target == ours.Destination })
	})
	for i := range all {
		switch {
		case all[i].Destination == sysTarget && in.Sys != "":
			all[i].Type, all[i].Source = "bind", in.Sys
			all[i].Options = slices.Concat([]string{"bind", "rprivate"}, sysOptions)
		case all[i].Destination == sharedTarget:
			size := cmp.Or(in.Spec.Resources.SharedMemoryBytes, engine.DefaultSharedMemoryBytes)
			all[i].Options = append(slices.Clip(all[i].Options), fmt.Sprintf("size=%d", size))
		}
	}
	slices.SortStableFunc(bound, func(a, b specs.Mount) int {
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	return append(all, bound...), nil
}

// etcMounts returns those of the files of /etc, where the image's links lead. An image that has no
// place for one gets none: what another mount covers, or the kernel's file systems, is not the
// image's.
func etcMounts(in Input, image layers, asked []Mount) ([]specs.Mount, error) {
	if in.EtcDirectory == "" {
		return nil, nil
	}
	var bound []specs.Mount
	for _, name := range etcFiles {
		source := filepath.Join(in.EtcDirectory, name)
		if _, err := os.Lstat(source); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		at, err := image.resolve("/etc/" + name)
		covered := func(mount Mount) bool { return within(at.path, mount.Target) || within(mount.Target, at.path) }
		if err != nil || at.directory || isKernels(at.path) || slices.ContainsFunc(asked, covered) {
			continue
		}
		source = filepath.Join(cmp.Or(in.EtcSource, in.EtcDirectory), name)
		bound = append(bound, in.Runtime.bind(Mount{Source: source, Target: at.path}))
	}
	return bound, nil
}

// shownFiles are where the files of [Input.EtcDirectory] are mounted that show a container its
// limits as the size of the machine. Their names are the last parts of these.
var shownFiles = []string{limits.CPUInfo, limits.MemInfo, limits.Online}

// shownMounts returns the mounts of those of them that there are.
func shownMounts(in Input, asked []Mount) ([]specs.Mount, error) {
	if in.EtcDirectory == "" || in.Runtime.OwnKernel {
		return nil, nil
	}
	var bound []specs.Mount
	for _, target := range shownFiles {
		name := path.Base(target)
		if _, err := os.Lstat(filepath.Join(in.EtcDirectory, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(asked, func(mount Mount) bool { return within(target, mount.Target) }) {
			continue
		}
		bound = append(bound, specs.Mount{
			Destination: target, Type: "bind", Source: filepath.Join(cmp.Or(in.EtcSource, in.EtcDirectory), name),
			Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev", "noexec"},
		})
	}
	return bound, nil
}

func (r Runtime) bind(mount Mount) specs.Mount {
	access := "rw"
	switch {
	case mount.ReadOnly && r.recursiveReadOnly && !mount.File: // crun 1.8 can have no file so
		access = "rro" // what is mounted below the source, too
	case mount.ReadOnly:
		access = "ro"
	}
	return specs.Mount{
		Destination: mount.Target, Type: "bind", Source: mount.Source,
		Options: []string{"rbind", "rprivate", access},
	}
}
