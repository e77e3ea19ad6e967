package host

import (
	"fmt"
	"path/filepath"
	"slices"

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

// unmoved resolves the host's paths once more, after the engine has mounted them: somebody may have put a link in the place of a
// folder between the look and the mount. Who can exchange it twice in that moment is not found out; only writers of the allowed
// folders can try.
func (h *Host) unmoved(volumes []lifecycle.Volume, mounted []engine.Mount) error {
	for i, v := range volumes {
		if v.HostPath == "" {
			continue
		}
		again, err := h.mount(i, v)
		if err != nil || !slices.Contains(mounted, again) {
			return &provisionError{
				reason: lifecycle.ReasonContainerError,
				text:   fmt.Sprintf("volumes[%d].host.path: %q was exchanged while the sandbox was being started", i, v.HostPath),
			}
		}
	}
	return nil
}
