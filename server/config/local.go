package config

import (
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
)

// Local is the section [local]: the engine that the service brings along, which needs an OCI
// runtime and no daemon.
type Local struct {
	// DataDir is the directory of images, volumes and the file systems of sandboxes, absolute; only
	// one service may use it. Unset: the directory local in server.data_dir.
	DataDir string `toml:"data_dir"`
	// OCIRuntime is the program that starts sandboxes: crun, runc or runsc, or an absolute path
	// that ends with one of these. Unset: the first of them that is installed.
	OCIRuntime string `toml:"oci_runtime"`
	// Keeper is the program sandbox-keeper, which starts sandboxes and outlives the service: an
	// absolute path. Unset: the one beside the service's own program.
	Keeper string `toml:"keeper"`
	// Bridge is the name of the network interface that sandboxes are connected to, which the
	// service makes: at most 11 letters, digits and "-". Two services on one machine need two.
	Bridge string `toml:"bridge"`
	// Subnet is the range of sandboxes' addresses, IPv4, /8 to /24, to which no other route leads.
	// Unset: a private one.
	Subnet string `toml:"subnet"`
	// UserNamespaces is whether root in a sandbox is an ordinary user of the machine: auto, for
	// every sandbox that can have a user namespace, if a trial at the start shows that this machine
	// can; on, or the service does not start, and refuses sandboxes that cannot have one; off.
	// gVisor's sandboxes have none.
	UserNamespaces UserNamespaces `toml:"user_namespaces"`
	// DiskMiB bounds what one sandbox writes to its root file system, in MiB, from 16 to 1048576; 0
	// is no limit. It takes mkfs.ext4, which is in the package e2fsprogs, and a loop device for
	// each sandbox.
	DiskMiB int64 `toml:"disk_mib"`
	// KeepAcrossReboot is whether a sandbox outlives a reboot of the machine, or a loss of power:
	// it is Paused then, with the files that it has synced, and resume starts its entrypoint again.
	// It counts for sandboxes that are started while it is true. The end of a sandbox then waits
	// until its writes are on the disk, and with local.disk_mib a part of that is a journal: 4 MiB,
	// from 1 GiB on 16 MiB.
	KeepAcrossReboot bool `toml:"keep_across_reboot"`
	// GPUKind is the kind of devices that resourceLimits.gpu counts, as CDI specifications in
	// /etc/cdi and /var/run/cdi name it. A GPU belongs to one sandbox at a time. Hooks of the
	// specifications run as root of the machine. Empty: sandboxes get no GPUs.
	GPUKind string `toml:"gpu_kind"`
	// ConfineProcessors is whether a sandbox whose resourceLimits.cpu needs fewer processors than
	// the machine has runs on so many alone, those with the least limits of others: what programs
	// count is the limit then. Where the limits together exceed the machine, some processors are
	// shared while others may be idle; false leaves the choice to the kernel, and nproc shows the
	// machine's.
	ConfineProcessors bool `toml:"confine_processors"`
	// Archives are files with images, as `docker save` or an OCI layout in a tar file, which are
	// loaded at the start: absolute paths. A file that has not changed since is not loaded again.
	// Those in share/sandbox/images of the prefix that the service is installed below are loaded
	// without being named, before these.
	Archives []string `toml:"archives"`
	// ImagesMiB bounds what the layers of images take on the disk, in MiB; 0 is no limit. Images
	// that nothing uses are removed when a pull needs the place.
	ImagesMiB int64 `toml:"images_mib"`
	// InsecureRegistries are the registries that are asked over HTTP: host names with an optional
	// port. Those on the loopback interface always are. Keys of every role may name these
	// registries, as those in runtime.internal_registries.
	InsecureRegistries []string `toml:"insecure_registries"`
	// Mirrors are the registries that are asked before another one.
	Mirrors []Mirror `toml:"mirrors"`
}

// Bounds of local.disk_mib: those of the file systems that are made.
const (
	minDiskMiB = 16
	maxDiskMiB = 1 << 20
)

// UserNamespaces is a value of local.user_namespaces.
type UserNamespaces string

// The values of local.user_namespaces.
const (
	UserNamespacesAuto UserNamespaces = "auto"
	UserNamespacesOn   UserNamespaces = "on"
	UserNamespacesOff  UserNamespaces = "off"
)

// Mirror is one entry of [[local.mirrors]].
type Mirror struct {
	// Registry is the registry that images are named after, such as docker.io.
	Registry string `toml:"registry"`
	// Hosts are asked before it, in this order: host names with an optional port.
	Hosts []string `toml:"hosts"`
}

func defaultLocal() Local {
	return Local{
		Bridge: "sandbox0", GPUKind: "nvidia.com/gpu", ConfineProcessors: true, UserNamespaces: UserNamespacesAuto, Archives: []string{}, InsecureRegistries: []string{}, Mirrors: []Mirror{},
	}
}

// Directory returns the directory of the local engine's data.
func (l Local) Directory(server Server) string {
	if l.DataDir != "" {
		return l.DataDir
	}
	return filepath.Join(server.DataDir, "local")
}

// interfaceName leaves room for what is appended to it for the other end of a connection: names of
// interfaces have 15 bytes.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,10}$`)

// deviceKind is the form of kinds in CDI specifications.
var deviceKind = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?$`)

func (l Local) check(p *problems) {
	if l.DataDir != "" && !filepath.IsAbs(l.DataDir) {
		p.add("local.data_dir", "must be an absolute path (got %q)", l.DataDir)
	}
	switch filepath.Base(l.OCIRuntime) {
	case "crun", "runc", "runsc":
		if l.OCIRuntime != filepath.Base(l.OCIRuntime) && !filepath.IsAbs(l.OCIRuntime) {
			p.add("local.oci_runtime", "must be crun, runc or runsc, or the absolute path of one (got %q)", l.OCIRuntime)
		}
	default:
		if l.OCIRuntime != "" {
			p.add("local.oci_runtime", "must be crun, runc or runsc, or the absolute path of one (got %q)", l.OCIRuntime)
		}
	}
	if l.Keeper != "" && !filepath.IsAbs(l.Keeper) {
		p.add("local.keeper", "must be an absolute path (got %q)", l.Keeper)
	}
	if !interfaceName.MatchString(l.Bridge) {
		p.add("local.bridge", `must be at most 11 letters, digits and "-", and not begin with "-" (got %q)`, l.Bridge)
	}
	if l.Subnet != "" {
		subnet, err := netip.ParsePrefix(l.Subnet)
		if err != nil || !subnet.Addr().Is4() || subnet.Bits() < 8 || subnet.Bits() > 24 || subnet != subnet.Masked() {
			p.add("local.subnet", "must be an IPv4 range from /8 to /24 without bits after the prefix, such as 10.88.0.0/16 (got %q)", l.Subnet)
		}
	}
	checkOneOf(p, "local.user_namespaces", l.UserNamespaces, UserNamespacesAuto, UserNamespacesOn, UserNamespacesOff)
	if l.GPUKind != "" && !deviceKind.MatchString(l.GPUKind) {
		p.add("local.gpu_kind", "must be VENDOR/CLASS, such as nvidia.com/gpu, or empty (got %q)", l.GPUKind)
	}
	if l.DiskMiB != 0 && (l.DiskMiB < minDiskMiB || l.DiskMiB > maxDiskMiB) {
		p.add("local.disk_mib", "must be 0, for no limit, or from %d to %d (got %d)", minDiskMiB, maxDiskMiB, l.DiskMiB)
	}
	for i, path := range l.Archives {
		if !filepath.IsAbs(path) {
			p.add(fmt.Sprintf("local.archives[%d]", i), "must be an absolute path (got %q)", path)
		}
	}
	if l.ImagesMiB < 0 || l.ImagesMiB > math.MaxInt64>>20 {
		p.add("local.images_mib", "must be from 0 to %d, where 0 is no limit (got %d)", int64(math.MaxInt64>>20), l.ImagesMiB)
	}
	for i, host := range l.InsecureRegistries {
		if !isHostPort(host) {
			p.add(fmt.Sprintf("local.insecure_registries[%d]", i), "must be a host name or an IP address with an optional port (got %q)", host)
		}
	}
	registries := map[string]bool{}
	for i, mirror := range l.Mirrors {
		key := fmt.Sprintf("local.mirrors[%d]", i)
		if registries[mirror.Registry] {
			p.add(key+".registry", "names %q again: one entry has all hosts of a registry", mirror.Registry)
		}
		registries[mirror.Registry] = true
		if !isHostPort(mirror.Registry) {
			p.add(key+".registry", "must be a host name or an IP address with an optional port (got %q)", mirror.Registry)
		}
		if len(mirror.Hosts) == 0 {
			p.add(key+".hosts", "must name at least one host")
		}
		for j, host := range mirror.Hosts {
			if !isHostPort(host) {
				p.add(fmt.Sprintf("%s.hosts[%d]", key, j), "must be a host name or an IP address with an optional port (got %q)", host)
			}
		}
	}
}

func (l Local) warnings(runtime RuntimeType) []string {
	if runtime == RuntimeLocal || reflect.DeepEqual(l, defaultLocal()) {
		return nil
	}
	return []string{"the section [local] has no effect: runtime.type is " + string(runtime)}
}
