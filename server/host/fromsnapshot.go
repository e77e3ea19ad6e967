package host

import (
	"maps"
	"slices"

	"sandbox.internal/server/lifecycle"
)

// complete returns a spec with what it leaves out where it begins with a snapshot, and the snapshot
// then. The snapshot stays at the engine until done is called; from then on the new record needs
// it. A snapshot of another key does not exist for the caller.
func (h *Host) complete(
	spec lifecycle.Spec, options lifecycle.CreateOptions,
) (completed lifecycle.Spec, snapshot lifecycle.Snapshot, done func(), err error) {
	if spec.SnapshotID == "" {
		return spec, snapshot, func() {}, nil
	}
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return spec, snapshot, nil, err
	}
	snapshot, done, err = h.snapshots.use(spec.SnapshotID, func(s *lifecycle.Snapshot) bool {
		return s.Owner == options.Owner || options.Role == lifecycle.RoleAdmin
	})
	if err != nil {
		return spec, snapshot, nil, err
	}
	if snapshot.Kind == lifecycle.SnapshotMemory {
		done()
		return spec, snapshot, nil, ofItsSandbox("create a sandbox", snapshot)
	}
	if spec, err = complete(spec, snapshot); err != nil {
		done()
		return spec, snapshot, nil, err
	}
	return spec, snapshot, done, nil
}

// complete returns a spec that begins with a snapshot with what it leaves out, from the snapshot.
// It returns an Error of KindInvalid for what could be wider than the snapshot's sandbox.
func complete(spec lifecycle.Spec, snapshot lifecycle.Snapshot) (lifecycle.Spec, error) {
	origin := snapshot.Origin
	switch {
	case spec.Image != "" || spec.Auth != nil:
		return spec, lifecycle.Invalidf("image: must be left out when snapshotId is given: the sandbox has the snapshot's image")
	case spec.RuntimeClass != "" && spec.RuntimeClass != origin.RuntimeClass:
		return spec, lifecycle.Invalidf("runtimeClass: must be left out: the snapshot's runtime class applies")
	case spec.NetworkPolicy != nil && origin.NetworkPolicy != nil:
		return spec, lifecycle.Invalidf("networkPolicy: must be left out: the snapshot's policy applies")
	}
	spec.Image, spec.RuntimeClass = snapshot.Image, origin.RuntimeClass
	if origin.NetworkPolicy != nil {
		spec.NetworkPolicy = origin.NetworkPolicy.Clone()
	}
	if spec.Entrypoint == nil && !spec.ImageEntrypoint {
		spec.Entrypoint, spec.ImageEntrypoint = slices.Clone(origin.Entrypoint), origin.ImageEntrypoint
	}
	if len(spec.Resources) == 0 {
		spec.Resources = maps.Clone(origin.Resources)
	}
	return spec, spec.Validate()
}
