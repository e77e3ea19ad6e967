package box

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box/internal/images"
	"sandbox.internal/server/lifecycle"
)

// The labels of every snapshot: its id, and its record, from which it can be rebuilt.
const (
	labelSnapshot       = lifecycle.LabelPrefix + "snapshot"
	labelSnapshotRecord = lifecycle.LabelPrefix + "snapshot-record"
)

// snapshotName returns the engine's name of the snapshot with the id.
func snapshotName(id string) string { return "sandbox-snapshot-" + id }

// SnapshotsUnsupported returns an Error of KindUnsupported where the engine has no snapshots.
func (c *Containers) SnapshotsUnsupported() error {
	if c.options.Snapshots == nil {
		return lifecycle.Unsupportedf("snapshots need the local engine (runtime.type = \"local\") or a Docker Engine: this service's container engine has none")
	}
	return c.lacks(engine.AbilitySnapshots, "snapshots")
}

// ComparisonUnsupported returns an Error of KindUnsupported where the engine does not compare
// snapshots.
func (c *Containers) ComparisonUnsupported() error {
	if err := c.SnapshotsUnsupported(); err != nil {
		return err
	}
	return c.lacks(engine.AbilityComparison, "comparisons of snapshots")
}

// SuspensionUnsupported returns an Error of KindUnsupported where the engine does not keep the
// files of a box without its processes.
func (c *Containers) SuspensionUnsupported() error {
	if c.SnapshotsUnsupported() != nil || c.options.Snapshots.CheckAbility(engine.AbilitySuspension) != nil {
		return lifecycle.FilesOnlyUnsupported()
	}
	return nil
}

// lacks returns an Error of KindUnsupported about what the engine cannot do; nil where it can.
func (c *Containers) lacks(ability engine.Ability, what string) error {
	if err := c.options.Snapshots.CheckAbility(ability); err != nil {
		return lifecycle.Unsupportedf("%s need the local engine (runtime.type = \"local\"): %v", what, err)
	}
	return nil
}

// MemoryUnsupported returns an Error of KindUnsupported where the engine has no snapshots of memory
// of the box of a record.
func (c *Containers) MemoryUnsupported(record lifecycle.Record) error {
	if err := c.SnapshotsUnsupported(); err != nil {
		return err
	}
	if err := c.options.Snapshots.KeepsMemory(record.Runtime); err != nil {
		return lifecycle.Unsupportedf("kind: memory needs a sandbox whose runtime is gVisor's runsc (its runtimeClass, or local.oci_runtime): %v", err)
	}
	return nil
}

// TakeSnapshot keeps the files of a box as the snapshot, and its processes with one of memory. It
// returns
// [lifecycle.ErrNoBox], [lifecycle.ErrBoxNotAlive], [lifecycle.ErrBoxUnavailable], ctx's error, or
// a *[lifecycle.BoxFailure]; then there is no such snapshot, unless the engine did not answer.
func (c *Containers) TakeSnapshot(ctx context.Context, record lifecycle.Record, snapshot lifecycle.Snapshot, maxBytes int64) (lifecycle.SnapshotFiles, error) {
	if err := c.SnapshotsUnsupported(); err != nil {
		return lifecycle.SnapshotFiles{}, err
	}
	encoded, err := lifecycle.EncodeJSON(snapshot)
	if err != nil {
		return lifecycle.SnapshotFiles{}, err
	}
	labels := maps.Clone(c.ours())
	labels[labelSnapshot], labels[labelSnapshotRecord] = snapshot.ID, string(encoded)
	made, err := c.options.Snapshots.TakeSnapshot(ctx, containerName(record.Box),
		engine.SnapshotOptions{
			Name: snapshotName(snapshot.ID), Labels: labels, MaxBytes: maxBytes, Memory: snapshot.Kind == lifecycle.SnapshotMemory,
		})
	if err != nil {
		return lifecycle.SnapshotFiles{}, snapshotFailure(ctx, err)
	}
	return filesOf(made), nil
}

func filesOf(s engine.Snapshot) lifecycle.SnapshotFiles {
	return lifecycle.SnapshotFiles{EngineImage: s.ImageID, Size: s.Bytes, ExclusiveSize: s.Exclusive, Frozen: s.Frozen}
}

// snapshotFailure returns why a snapshot could not be taken, in the terms of its status.
func snapshotFailure(ctx context.Context, err error) error {
	for _, kind := range kinds {
		if errors.Is(err, kind.from) {
			return translated(err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reason := lifecycle.ReasonSnapshotFailed
	switch {
	case errors.Is(err, engine.ErrSnapshotTooLarge):
		reason = lifecycle.ReasonSnapshotTooLarge
	case errors.Is(err, engine.ErrNoRoom):
		reason = lifecycle.ReasonNoRoom
	case errors.Is(err, engine.ErrBusy):
		reason = lifecycle.ReasonSandboxBusy
	}
	return &lifecycle.BoxFailure{Reason: reason, Message: err.Error()}
}

// Snapshots returns what the engine has of this service's snapshots, by id.
func (c *Containers) Snapshots(ctx context.Context) (map[string]lifecycle.FoundSnapshot, error) {
	if err := c.SnapshotsUnsupported(); err != nil {
		return nil, err
	}
	list, err := c.options.Snapshots.ListSnapshots(ctx)
	if err != nil {
		return nil, translated(err)
	}
	found := map[string]lifecycle.FoundSnapshot{}
	for _, s := range list {
		id := s.Labels[labelSnapshot]
		if s.Labels[labelInstance] != c.options.Instance || s.Name != snapshotName(id) {
			continue
		}
		known := lifecycle.FoundSnapshot{SnapshotFiles: filesOf(s)}
		var record lifecycle.Snapshot
		if json.Unmarshal([]byte(s.Labels[labelSnapshotRecord]), &record) == nil && record.ID == id {
			known.Record = &record
		}
		found[id] = known
	}
	return found, nil
}

// RemoveSnapshot removes the snapshot with the id. Removing a missing one succeeds.
func (c *Containers) RemoveSnapshot(ctx context.Context, id string) error {
	if err := c.SnapshotsUnsupported(); err != nil {
		return err
	}
	return translated(c.options.Snapshots.RemoveSnapshot(ctx, snapshotName(id)))
}

// Suspend ends the processes of a box, as [Containers.Stop] does, and keeps its files;
// [Containers.Restart] starts it on them. It returns [lifecycle.ErrNoBox],
// [lifecycle.ErrBoxNotAlive] for one that has ended without them, [lifecycle.ErrBoxUnavailable] and
// ctx's error, and can be repeated.
func (c *Containers) Suspend(ctx context.Context, record lifecycle.Record) error {
	if err := c.SuspensionUnsupported(); err != nil {
		return err
	}
	err := c.options.Snapshots.Suspend(ctx, containerName(record.Box), cmp.Or(record.StopTime, stopGrace))
	if err != nil {
		return translated(err)
	}
	return c.removeNetwork(ctx, record)
}

// HibernationUnsupported returns an Error of KindUnsupported where boxes cannot be brought to the
// disk.
func (c *Containers) HibernationUnsupported() error {
	if c.SnapshotsUnsupported() != nil || c.options.Snapshots.CheckAbility(engine.AbilitySuspension) != nil {
		return lifecycle.Unsupportedf(
			`lifecycle.onIdle: hibernate needs the local engine (runtime.type = "local"), which keeps a sandbox on the disk; use pause`)
	}
	return nil
}

// Hibernate has the engine write the processes of a frozen box to the disk, where its runtime can,
// and ends them: [Containers.Restart] has them go on, or else starts the box on its files. It
// returns whether the processes are on the disk, or else the errors of Suspend and a
// *[lifecycle.BoxFailure] for what is refused, and can be repeated.
func (c *Containers) Hibernate(ctx context.Context, record lifecycle.Record) (processes bool, err error) {
	if err := c.HibernationUnsupported(); err != nil {
		return false, err
	}
	name := containerName(record.Box)
	if c.MemoryUnsupported(record) != nil {
		err := c.options.Snapshots.Suspend(ctx, name, cmp.Or(record.StopTime, stopGrace))
		if err != nil {
			return false, snapshotFailure(ctx, err)
		}
		return false, c.removeNetwork(ctx, record)
	}
	err = c.options.Snapshots.Hibernate(ctx, name)
	if errors.Is(err, engine.ErrNotRunning) {
		if container, inspected := c.options.Engine.Inspect(ctx, name); inspected == nil && container.Status == engine.StatusStopped {
			return false, c.removeNetwork(ctx, record) // by a reboot
		}
	}
	if err != nil {
		return false, snapshotFailure(ctx, err)
	}
	return true, c.removeNetwork(ctx, record)
}

// Rollback ends the processes of a box and gives it the files of the snapshot with the id;
// [Containers.Restart] starts it on them, with the processes of a snapshot of memory. It returns
// [lifecycle.ErrNoBox], [lifecycle.ErrBoxUnavailable], ctx's error, or a *[lifecycle.BoxFailure]
// for what is refused, and can be repeated.
func (c *Containers) Rollback(ctx context.Context, record lifecycle.Record, id string) error {
	if err := c.SnapshotsUnsupported(); err != nil {
		return err
	}
	if c.hostPaths.Pinned() { // the engine may make the container again
		_, release, err := c.hostPaths.PinAgain(record)
		if err != nil {
			return &lifecycle.BoxFailure{Reason: lifecycle.ReasonRollbackFailed, Message: err.Error()}
		}
		defer release()
	}
	err := c.options.Snapshots.Rollback(ctx, containerName(record.Box), snapshotName(id))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, engine.ErrNoSnapshot), errors.Is(err, engine.ErrInvalid), errors.Is(err, engine.ErrNoRoom),
		errors.Is(err, engine.ErrNoMemory):
		return &lifecycle.BoxFailure{Reason: lifecycle.ReasonRollbackFailed, Message: err.Error()}
	}
	return translated(err)
}

// CompareSnapshots calls visit for each file in which the snapshot to differs from the snapshot
// from, or from its image where from is empty. An error of visit ends the comparison, and is
// returned. CompareSnapshots also returns [lifecycle.ErrBoxUnavailable], ctx's error, and an Error
// of KindNoSnapshot, or of KindConflict for what cannot be compared.
func (c *Containers) CompareSnapshots(ctx context.Context, from, to string, visit func(lifecycle.FileChange) error) error {
	if err := c.ComparisonUnsupported(); err != nil {
		return err
	}
	err := c.options.Snapshots.CompareSnapshots(ctx, snapshotOrImage(from), snapshotName(to), func(f engine.FileChange) error {
		return visit(lifecycle.FileChange{Path: f.Path, Kind: string(f.Kind), Type: string(f.Type), Size: f.Size})
	})
	return diffFailure(to, err)
}

// ArchiveSnapshot writes what CompareSnapshots compares as a layer of an image, and returns the
// same errors.
func (c *Containers) ArchiveSnapshot(ctx context.Context, from, to string, w io.Writer) error {
	if err := c.ComparisonUnsupported(); err != nil {
		return err
	}
	return diffFailure(to, c.options.Snapshots.ArchiveSnapshot(ctx, snapshotOrImage(from), snapshotName(to), w))
}

func snapshotOrImage(id string) string {
	if id == "" {
		return ""
	}
	return snapshotName(id)
}

func diffFailure(id string, err error) error {
	switch {
	case errors.Is(err, engine.ErrNoSnapshot):
		return lifecycle.NoSnapshot(id)
	case errors.Is(err, engine.ErrInvalid), errors.Is(err, engine.ErrSnapshotTooLarge), errors.Is(err, engine.ErrImage):
		return lifecycle.Conflictf("cannot compare snapshot %s: %v", id, err)
	}
	return translated(err)
}

// DigestSnapshot returns the digest of the files of the snapshot with the id, which the first call
// makes. It returns [lifecycle.ErrBoxUnavailable], ctx's error, and an Error of KindNoSnapshot, or
// of KindConflict for what has none.
func (c *Containers) DigestSnapshot(ctx context.Context, id string) (string, error) {
	if err := c.ComparisonUnsupported(); err != nil {
		return "", err
	}
	digest, err := c.options.Snapshots.DigestSnapshot(ctx, snapshotName(id))
	return digest, diffFailure(id, err)
}

// ExportSnapshot makes an image of the snapshot with the id, under a name, which every key may use
// then. It returns [lifecycle.ErrBoxUnavailable], ctx's error, and an Error of KindInvalid for the
// name, KindNoSnapshot, or KindConflict for what no image can be made of.
func (c *Containers) ExportSnapshot(ctx context.Context, id, name string) (lifecycle.Image, error) {
	if err := c.SnapshotsUnsupported(); err != nil {
		return lifecycle.Image{}, err
	}
	image, err := c.options.Snapshots.ExportSnapshot(ctx, snapshotName(id), name)
	switch {
	case err == nil:
		err = c.images.Loaded(ctx, []engine.Image{image})
	case errors.Is(err, engine.ErrInvalid):
		err = lifecycle.Invalidf("body/name: %v", err)
	case errors.Is(err, engine.ErrNoSnapshot):
		err = lifecycle.NoSnapshot(id)
	case errors.Is(err, engine.ErrImage), errors.Is(err, engine.ErrSnapshotTooLarge), errors.Is(err, engine.ErrNoRoom):
		err = lifecycle.Conflictf("cannot make an image of snapshot %s: %v", id, err)
	default:
		err = translated(err)
	}
	return images.FromEngine([]engine.Image{image})[0], err
}
