package host

import (
	"path/filepath"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// mount returns where a volume really comes from. Symbolic links are resolved before a path is compared with the allowed ones,
// and what is mounted is the resolved path. It returns an Error of KindInvalid that names the volume.
func (h *Host) mount(i int, v lifecycle.Volume) (engine.Mount, error) {
	mount := engine.Mount{Target: v.MountPath, ReadOnly: v.ReadOnly, Volume: v.ClaimName}
	if v.ClaimName != "" {
		mount.SubPath = v.SubPath
		return mount, nil
	}
	base, err := filepath.EvalSymlinks(v.HostPath)
	if err != nil {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].host.path: %q does not exist on the host", i, v.HostPath)
	}
	resolved, err := filepath.EvalSymlinks(filepath.Join(base, v.SubPath))
	if err != nil {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].subPath: %q does not exist below %q", i, v.SubPath, v.HostPath)
	}
	if !lifecycle.PathAllowed(resolved, []string{base}) {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].subPath: %q leads out of %q", i, v.SubPath, v.HostPath)
	}
	if resolved == "/" {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].host.path: %q is the host's root, which cannot be mounted", i, v.HostPath)
	}
	if !lifecycle.PathAllowed(resolved, h.AllowedHostPaths) {
		return engine.Mount{}, lifecycle.Invalidf("volumes[%d].host.path: %q is not below any of storage.allowed_host_paths", i, v.HostPath)
	}
	mount.HostPath = resolved
	return mount, nil
}
