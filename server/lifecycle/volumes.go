package lifecycle

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// Volume is a directory of the host, or a named volume, that a sandbox sees at MountPath. Exactly
// one of HostPath and ClaimName is set.
type Volume struct {
	Name      string
	MountPath string // absolute path in the sandbox
	ReadOnly  bool
	SubPath   string // directory below the source, relative
	HostPath  string // absolute path on the host
	ClaimName string // name of a volume that outlives sandboxes
}

var (
	volumeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	claimName  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,252}$`)
)

const (
	// MaxVolumes is how many volumes a sandbox may have. Each is compared with every other, and the
	// engine is asked about each.
	MaxVolumes = 64

	// DaemonPath is where a sandbox sees its own daemon, read-only; nothing else can be mounted
	// there.
	DaemonPath = "/opt/sandbox"
	// DaemonVolumePrefix begins the names of the volumes that hold the daemon. All sandboxes run it
	// from there, so none may claim one.
	DaemonVolumePrefix = "sandbox-execd-"
)

// kernelPaths are file systems that the engine itself puts into every sandbox.
var kernelPaths = []string{"/proc", "/sys", "/dev"}

func validateVolumes(volumes []Volume) error {
	if len(volumes) > MaxVolumes {
		return Invalidf("volumes: must have at most %d items, has %d", MaxVolumes, len(volumes))
	}
	names := make(map[string]bool)
	for i, v := range volumes {
		if err := v.validate(i); err != nil {
			return err
		}
		if names[v.Name] {
			return Invalidf("volumes[%d].name: %q is used twice; names must be unique", i, v.Name)
		}
		names[v.Name] = true
		for j, other := range volumes[:i] {
			if PathWithin(v.MountPath, other.MountPath) || PathWithin(other.MountPath, v.MountPath) {
				return Invalidf("volumes[%d].mountPath: %.128q overlaps volumes[%d].mountPath %.128q", i, v.MountPath, j, other.MountPath)
			}
		}
	}
	return nil
}

func (v Volume) validate(i int) error {
	switch {
	case !volumeName.MatchString(v.Name):
		return Invalidf("volumes[%d].name: %.128q must be 1 to 63 lower-case letters, digits and dashes", i, v.Name)
	case (v.HostPath == "") == (v.ClaimName == ""):
		return Invalidf("volumes[%d]: exactly one of host and pvc must be set", i)
	case v.HostPath != "" && !cleanAbsolute(v.HostPath) || v.HostPath == "/":
		return Invalidf("volumes[%d].host.path: %.128q must be an absolute path without . or .. parts and without needless slashes, and not /", i, v.HostPath)
	case v.ClaimName != "" && !claimName.MatchString(v.ClaimName):
		return Invalidf("volumes[%d].pvc.claimName: %.128q must be 2 to 253 letters, digits, and _ . - inside", i, v.ClaimName)
	case strings.HasPrefix(v.ClaimName, DaemonVolumePrefix):
		return Invalidf("volumes[%d].pvc.claimName: %q: names that begin with %s are reserved for the sandboxes' daemon", i, v.ClaimName, DaemonVolumePrefix)
	case !cleanAbsolute(v.MountPath) || v.MountPath == "/":
		return Invalidf("volumes[%d].mountPath: %.128q must be an absolute path without . or .. parts and without needless slashes, and not /", i, v.MountPath)
	case PathWithin(v.MountPath, DaemonPath) || PathWithin(DaemonPath, v.MountPath):
		return Invalidf("volumes[%d].mountPath: %.128q overlaps %s, which holds the sandbox's daemon", i, v.MountPath, DaemonPath)
	case v.SubPath != "" && !cleanRelative(v.SubPath):
		return Invalidf("volumes[%d].subPath: %.128q must be a relative path without . or .. parts and without needless slashes", i, v.SubPath)
	}
	for _, taken := range kernelPaths {
		if PathWithin(v.MountPath, taken) {
			return Invalidf("volumes[%d].mountPath: %.128q overlaps %s, which belongs to the kernel", i, v.MountPath, taken)
		}
	}
	return nil
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

func cleanRelative(p string) bool {
	return fs.ValidPath(p) && p != "." && !strings.ContainsRune(p, 0)
}
