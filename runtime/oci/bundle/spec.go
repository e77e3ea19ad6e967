package bundle

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// programAnnotation gives crun a compiled seccomp filter.
	programAnnotation = "run.oci.seccomp_bpf_data"
	// maxFiles is how many open files a process has. The kernel counts them as memory of the
	// container, but not all that a socket among them holds; programs that close all that there may
	// be take the longer the more that is.
	maxFiles       = 1 << 14
	hostnameLength = 12 // of the id, as Docker does
)

// maskedPaths are Docker's: they show or change what is the host's.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
	"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/devices/virtual/powercap", "/sys/firmware",
}

var readonlyPaths = []string{
	"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
}

func build(in Input) (*specs.Spec, error) {
	if in.Spec.Resources.GPUs != 0 && len(in.Devices.Nodes) == 0 {
		return nil, invalid("GPUs", "are asked for, and the container has no device")
	}
	if len(in.Devices.Nodes) > 0 && in.Runtime.OwnKernel {
		return nil, invalid("GPUs", "%s has a kernel of its own, which has no devices of this machine", in.Runtime.Name)
	}
	process, err := process(in)
	if err != nil {
		return nil, err
	}
	namespaces, err := namespaces(in)
	if err != nil {
		return nil, err
	}
	mounts, err := mounts(in)
	if err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version:  specVersion,
		Process:  process,
		Root:     &specs.Root{Path: in.RootFS},
		Hostname: Hostname(in.ID, in.Spec.Network),
		Mounts:   mounts,
		Linux: &specs.Linux{
			CgroupsPath:   in.CgroupsPath,
			Namespaces:    namespaces,
			UIDMappings:   in.mapping(),
			GIDMappings:   in.mapping(),
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
			// Mounts of the host's stay out, also those that are undone at the host.
			RootfsPropagation: "rprivate",
			Sysctl:            sysctls(in),
			Resources:         &specs.LinuxResources{Devices: append(devices(), in.Devices.Rules...)},
			Devices:           in.Devices.Nodes,
		},
		Hooks: in.Devices.Hooks,
	}
	if in.Users.Count == 0 { // in a user namespace, those of the host are none of the container's
		process.User.AdditionalGids = append(slices.Clone(process.User.AdditionalGids), in.Devices.Groups...)
	}
	filter, err := filters.get(in.Spec.Security.SeccompProfile, process.Capabilities.Bounding)
	if err != nil {
		return nil, err
	}
	// A runtime that ignores the annotation uses the profile.
	spec.Linux.Seccomp = filter.profile
	if in.Runtime.takesFilter && filter.program != "" {
		spec.Annotations = map[string]string{programAnnotation: filter.program}
	}
	return spec, nil
}

func process(in Input) (*specs.Process, error) {
	account, err := resolveUser(in.Layers, in.Image.User)
	if err != nil {
		return nil, err
	}
	unknown := func(id uint32) bool { return !in.Users.has(id) }
	if in.Users.Count > 0 && slices.ContainsFunc(account.ids(), unknown) {
		return nil, invalid("user", "%q: in a user namespace, a container has no more than some ids beyond %d", in.Image.User, in.Users.own()-1)
	}
	if err := checkWorkingDirectory(in.shown(), in.Image.WorkingDir); err != nil {
		return nil, err
	}
	capabilities, err := capabilities(in.Spec.Security)
	if err != nil {
		return nil, err
	}
	profile, err := appArmor(in.Spec.Security.AppArmorProfile)
	if err != nil {
		return nil, err
	}
	return &specs.Process{
		User:            account.user,
		Args:            arguments(in),
		Env:             environment(in, account.home),
		Cwd:             filepath.Join("/", in.Image.WorkingDir),
		Capabilities:    capabilitySets(capabilities, account.user),
		Rlimits:         rlimits(),
		NoNewPrivileges: in.Spec.Security.NoNewPrivileges,
		ApparmorProfile: profile,
	}, nil
}

// arguments are the container's entrypoint, or the image's with its command.
func arguments(in Input) []string {
	if len(in.Spec.Entrypoint) > 0 {
		return in.Spec.Entrypoint
	}
	return slices.Concat(in.Image.Entrypoint, in.Image.Cmd)
}

// environment is what Docker sets, then the image's, then the container's variables: the last one
// of a name counts, at the place of the first.
func environment(in Input, home string) []string {
	env := []string{"PATH=" + defaultPath, "HOSTNAME=" + Hostname(in.ID, in.Spec.Network)}
	place := map[string]int{"PATH": 0, "HOSTNAME": 1}
	set := func(name, value string) {
		at, ok := place[name]
		if !ok {
			at = len(env)
			place[name], env = at, append(env, "")
		}
		env[at] = name + "=" + value
	}
	for _, variable := range in.Image.Env {
		if name, value, ok := strings.Cut(variable, "="); ok && name != "" {
			set(name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Spec.Env)) {
		set(name, in.Spec.Env[name])
	}
	for _, variable := range in.Devices.Env {
		if name, value, ok := strings.Cut(variable, "="); ok && name != "" {
			set(name, value)
		}
	}
	if _, ok := place["HOME"]; !ok {
		set("HOME", home)
	}
	return env
}

// Hostname is the name that the container of the id has for itself: the beginning of the id or, in
// the host's network, the host's name, as Docker has it.
func Hostname(id string, network engine.Network) string {
	if network == engine.NetworkHost {
		if name, err := os.Hostname(); err == nil {
			return name
		}
	}
	return id[:min(len(id), hostnameLength)]
}

func rlimits() []specs.POSIXRlimit {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil
	}
	files := min(limit.Max, maxFiles)
	return []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: files, Soft: files}}
}

func namespaces(in Input) ([]specs.LinuxNamespace, error) {
	list := []specs.LinuxNamespace{
		{Type: specs.MountNamespace}, {Type: specs.UTSNamespace}, {Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace}, {Type: specs.CgroupNamespace},
	}
	switch {
	case in.NetNS != "":
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: in.NetNS})
	case in.Spec.Network == engine.NetworkNone:
		list = append(list, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	case in.Spec.Network != engine.NetworkHost:
		// Left out, it would be the host's network.
		return nil, invalid("network", "the container's network namespace is missing")
	}
	if in.Users.Count > 0 {
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace, Path: in.UserNS})
	}
	return list, nil
}

// mapping says which ids of the host those of the container are, nil without a user namespace.
func (in Input) mapping() []specs.LinuxIDMapping {
	if in.Users.Count == 0 {
		return nil
	}
	own := in.Users.own()
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: in.Users.First, Size: own}}
	for i, id := range in.Users.Beyond {
		ids = append(ids, specs.LinuxIDMapping{ContainerID: id, HostID: in.Users.First + own + uint32(i), Size: 1}) //nolint:gosec // few
	}
	return ids
}

// sysctls are those of the container, and one that Docker sets where the network is the container's
// own: without capabilities, processes may listen on low ports.
func sysctls(in Input) map[string]string {
	all := map[string]string{}
	if in.Spec.Network != engine.NetworkHost && in.Spec.Join == "" {
		all["net.ipv4.ip_unprivileged_port_start"] = "0"
	}
	maps.Copy(all, in.Spec.Sysctls)
	// Root of another user namespace may not set those of a network that it did not make.
	maps.DeleteFunc(all, func(name, _ string) bool {
		return in.Users.Count > 0 && in.NetNS != "" && strings.HasPrefix(name, "net.")
	})
	return all
}

// devices are the rules for runtimes that write them: Docker's. For those that do not, package
// cgroup has the same.
func devices() []specs.LinuxDeviceCgroup {
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	permit := func(kind string, major, minor int64, access string) {
		rule := specs.LinuxDeviceCgroup{Allow: true, Type: kind, Access: access}
		if major >= 0 {
			rule.Major = &major
		}
		if minor >= 0 {
			rule.Minor = &minor
		}
		rules = append(rules, rule)
	}
	permit("c", -1, -1, "m")
	permit("b", -1, -1, "m")
	for _, number := range [][2]int64{
		{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 1}, {5, 2}, {136, -1},
	} {
		permit("c", number[0], number[1], "rwm")
	}
	return rules
}

// defaultAppArmor is the profile that Docker loads, and uses unless another one is asked for.
const defaultAppArmor = "docker-default"

// loadedProfiles lists the AppArmor profiles of the host, "name (mode)" each.
const loadedProfiles = "/sys/kernel/security/apparmor/profiles"

// appArmor returns the profile to use: the one that is asked for, else Docker's, if this host has
// it.
func appArmor(wanted string) (string, error) {
	if wanted == unconfined {
		return wanted, nil
	}
	name := cmp.Or(wanted, defaultAppArmor)
	list, err := os.ReadFile(loadedProfiles)
	if err == nil {
		for line := range strings.Lines(string(list)) {
			if loaded, _, _ := strings.Cut(line, " ("); loaded == name {
				return name, nil
			}
		}
	}
	switch {
	case wanted == "":
		return "", nil
	case err != nil:
		return "", invalid("AppArmor profile", "%q: this host has no AppArmor: %w", wanted, err)
	}
	return "", invalid("AppArmor profile", "%q is not loaded", wanted)
}
