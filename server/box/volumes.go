package box

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

const (
	// labelOwner is on named volumes that the service made: the name of the API key that used the
	// volume first. With labelInstance it says whose it is.
	labelOwner = lifecycle.LabelPrefix + "owner"
	// labelShared with the value "true" is on named volumes that every key may mount. The operator
	// sets it at the engine.
	labelShared = lifecycle.LabelPrefix + "shared"
	// labelsTimeout is how long a create waits for the engine's answers whose its named volumes
	// are.
	labelsTimeout = 5 * time.Second
)

// checkVolumes refuses volumes that the caller may not have: what the rules forbid as it is
// written, then what the disk shows, then what belongs to another key. While the engine does not
// answer, the last is left to the launch.
func (c *Containers) checkVolumes(ctx context.Context, volumes []lifecycle.Volume, owner string, role lifecycle.Role) error {
	if err := c.hostPaths.CheckVolumes(volumes, role); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, labelsTimeout)
	defer cancel()
	for i, v := range volumes {
		if _, err := c.hostPaths.Mount(i, v); err != nil {
			return err
		}
		if v.ClaimName == "" || role == lifecycle.RoleAdmin {
			continue
		}
		labels, err := c.options.Engine.VolumeLabels(soon, v.ClaimName)
		switch {
		case errors.Is(err, engine.ErrNotFound), errors.Is(err, engine.ErrUnavailable), ctx.Err() == nil && soon.Err() == context.DeadlineExceeded:
		case err != nil:
			return fmt.Errorf("look for volume %q: %w", v.ClaimName, err)
		case !c.mayMount(labels, owner):
			return ownedByAnother(i, v)
		}
	}
	return nil
}

// ownVolumes makes the named volumes of a sandbox that do not exist yet its owner's, and refuses
// those that belong to another key. It is asked again here because only the engine can say which of
// several sandboxes was first.
func (c *Containers) ownVolumes(ctx context.Context, record lifecycle.Record) error {
	for i, v := range record.Spec.Volumes {
		if v.ClaimName == "" {
			continue
		}
		labels, err := c.volumeOf(ctx, v, record.Sandbox.Owner)
		switch {
		case errors.Is(err, engine.ErrNotFound): // another key could make it until the container is made
			return lifecycle.BoxFailuref(lifecycle.ReasonContainerError, "volumes[%d].pvc.claimName: volume %q does not exist, which a sub path needs", i, v.ClaimName)
		case err != nil:
			return err
		case !record.ByAdmin && !c.mayMount(labels, record.Sandbox.Owner):
			return lifecycle.BoxFailuref(lifecycle.ReasonContainerError, "%v", ownedByAnother(i, v))
		}
	}
	return nil
}

func (c *Containers) volumeOf(ctx context.Context, v lifecycle.Volume, owner string) (labels map[string]string, err error) {
	if v.SubPath != "" {
		return c.options.Engine.VolumeLabels(ctx, v.ClaimName)
	}
	return c.options.Engine.MakeVolume(ctx, v.ClaimName, map[string]string{labelInstance: c.options.Instance, labelOwner: owner})
}

// mayMount reports whether a key that is no administrator's may mount a volume with these labels. A
// volume without them is not the service's: another program of the engine's host keeps its data
// there.
func (c *Containers) mayMount(labels map[string]string, owner string) bool {
	first, owned := labels[labelOwner]
	return labels[labelShared] == "true" || owned && first == owner && labels[labelInstance] == c.options.Instance
}

func ownedByAnother(i int, v lifecycle.Volume) *lifecycle.Error {
	return lifecycle.Forbiddenf("volumes[%d].pvc.claimName: volume %q belongs to another API key, or was not made by this service", i, v.ClaimName)
}

// wrongTarget names the field of a volume that the image has no place for. Any other error stays as
// it is.
func wrongTarget(volumes []lifecycle.Volume, err error) error {
	var target *engine.TargetError
	if !errors.As(err, &target) {
		return err
	}
	i := slices.IndexFunc(volumes, func(v lifecycle.Volume) bool { return v.MountPath == target.Target })
	if i < 0 {
		return err
	}
	return lifecycle.BoxFailuref(lifecycle.ReasonContainerError, "volumes[%d].mountPath: %.128q %s", i, target.Target, target.Rule)
}
