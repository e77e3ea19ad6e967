package lifecycle

import (
	"path"
	"strings"
)

// HostPaths says which paths of the host volumes may come from. All paths in it are absolute and
// clean. The zero value allows every path but the host's system and the file systems of the kernel.
type HostPaths struct {
	// None forbids every path.
	None bool
	// Allowed are directories that volumes may come from, with everything below; empty allows every
	// path but those of the host's system (lifecycle document, storage.allowed_host_paths).
	Allowed []string
	// Never are paths that no volume may show, whatever Allowed has: neither they nor what lies
	// below them, nor a directory above them. The file systems of the kernel belong to them without
	// being listed.
	Never []string
}

// The rules of host paths as errors name them.
const (
	// RuleAllowed is broken by a path that is not on the list.
	RuleAllowed = "is not below any of storage.allowed_host_paths"
	// RuleNone is broken by every path where None is set.
	RuleNone = "cannot be mounted: storage.host_volumes is false, so that this service mounts no paths of its host"
	// RuleNever does not name the path that it protects: where the service keeps its data is not
	// for its clients.
	RuleNever = "cannot be mounted: the host's root, the kernel's file systems, the container engine's sockets and data, " +
		"the service's own data, and directories that hold any of them never can"
	// RuleSystem is broken without a list by what the host itself is made of.
	RuleSystem = "is part of the host's system, such as /etc, /root, /boot, /usr and /var/lib, or holds a part of it: " +
		"it can be mounted only if storage.allowed_host_paths lists it"
)

// systemPaths are what the host itself is made of, and what its programs keep: who can write there
// is root on the host, and who can read there has its secrets.
var systemPaths = []string{
	"/bin", "/boot", "/efi", "/etc", "/gnu", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/root", "/run", "/sbin", "/snap", "/usr",
	"/var/backups", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool",
}

// System returns the paths that volumes show only if they are listed; none where there is a list.
func (p HostPaths) System() []string {
	if len(p.Allowed) > 0 {
		return nil
	}
	return systemPaths
}

// Broken returns the rule that the path breaks as it is written, or "" if it breaks none. It looks
// at no disk: what symbolic links make of the path is for the caller to find out.
func (p HostPaths) Broken(hostPath string) string {
	if p.None {
		return RuleNone
	}
	if !p.listed(hostPath) {
		return RuleAllowed
	}
	for _, never := range p.never() {
		if PathWithin(hostPath, never) || PathWithin(never, hostPath) {
			return RuleNever
		}
	}
	for _, system := range p.System() {
		if PathWithin(hostPath, system) || PathWithin(system, hostPath) {
			return RuleSystem
		}
	}
	return ""
}

// BrokenOnTheWay is Broken for a path that is passed through while another one is resolved: a
// directory above an allowed or a protected path breaks no rule.
func (p HostPaths) BrokenOnTheWay(hostPath string) string {
	for _, never := range p.never() {
		if PathWithin(hostPath, never) {
			return RuleNever
		}
	}
	for _, system := range p.System() {
		if PathWithin(hostPath, system) {
			return RuleSystem
		}
	}
	if p.listed(hostPath) {
		return ""
	}
	for _, prefix := range p.Allowed {
		if PathWithin(path.Clean(prefix), hostPath) {
			return ""
		}
	}
	return RuleAllowed
}

// Anchor returns the shortest path at or above hostPath that breaks no rule, and what leads from
// there to hostPath, "" for nothing. hostPath itself must break none. No sandbox can exchange an
// anchor: the directory above it cannot be mounted.
func (p HostPaths) Anchor(hostPath string) (anchor, rest string) {
	for at := 1; at < len(hostPath); at++ {
		if hostPath[at] == '/' && p.Broken(hostPath[:at]) == "" {
			return hostPath[:at], hostPath[at+1:]
		}
	}
	return hostPath, ""
}

func (p HostPaths) never() []string {
	return append(append([]string{}, kernelPaths...), p.Never...)
}

func (p HostPaths) listed(hostPath string) bool {
	if len(p.Allowed) == 0 {
		return true
	}
	for _, prefix := range p.Allowed {
		if PathWithin(hostPath, path.Clean(prefix)) {
			return true
		}
	}
	return false
}

// CheckVolumes returns an Error that names the first volume that a key with the role may not ask
// for: without a list of allowed paths, volumes from the host are for administrators. The path of
// each volume from the host, as it is written, breaks no rule.
func (p HostPaths) CheckVolumes(volumes []Volume, role Role) error {
	for i, v := range volumes {
		if v.HostPath == "" {
			continue
		}
		if !p.None && len(p.Allowed) == 0 && role != RoleAdmin {
			return Forbiddenf("volumes[%d].host: storage.allowed_host_paths is empty, so that only keys with the role %s may mount paths of the host", i, RoleAdmin)
		}
		if rule := p.Broken(path.Join(v.HostPath, v.SubPath)); rule != "" {
			return Invalidf("volumes[%d].host.path: %.128q %s", i, v.HostPath, rule)
		}
	}
	return nil
}

// PathWithin reports whether p is dir or lies below it; both are clean.
func PathWithin(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
