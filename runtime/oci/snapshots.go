package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/background"
	"sandbox.internal/runtime/oci/internal/containers"
	"sandbox.internal/runtime/oci/internal/layout"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/treecopy"
	"sandbox.internal/runtime/oci/overlay"
)

var _ engine.Snapshots = (*Engine)(nil)

// Failpoints of a snapshot, of a rollback, of a suspension and of a hibernation.
const (
	// HeldFailpoint: the processes of the container do not run, and its files are copied.
	HeldFailpoint = "snapshot-held"
	// CheckpointFailpoint: the processes of the container do not run, and their memory is written.
	CheckpointFailpoint = "snapshot-checkpoint"
	// CopiedFailpoint: the processes run again, and the snapshot has no record.
	CopiedFailpoint = "snapshot-copied"
	// TakenFailpoint: the snapshot is recorded, and the caller does not know it.
	TakenFailpoint = "snapshot-taken"
	// KilledFailpoint: the processes of the container have ended, and it is not rolled back.
	KilledFailpoint = "rollback-killed"
	// RolledBackFailpoint: the container is rolled back, and what it has written is there.
	RolledBackFailpoint = "rollback-recorded"
	// RestoredFailpoint: the container runs with the processes of a snapshot, and no record says
	// so.
	RestoredFailpoint = "rollback-restored"
	// KeepingFailpoint: the files of the container are kept, and its processes run.
	KeepingFailpoint = "suspend-keeping"
	// SuspendedFailpoint: the processes of the container have ended, and it is not stopped.
	SuspendedFailpoint = "suspend-ended"
	// MemoryWrittenFailpoint: the processes of the container are on the disk, and frozen.
	MemoryWrittenFailpoint = "hibernate-written"
	// HibernatedFailpoint: the processes are on the disk alone, and the container is not stopped.
	HibernatedFailpoint = "hibernate-ended"
)

const (
	// holdTimeout bounds how long the processes of a container take to stop.
	holdTimeout = 10 * time.Second
	// What is copied while the processes do not run takes a few milliseconds when it is not more
	// than this. A snapshot copies the rest before, in as many rounds at most.
	heldBytes, heldFiles, maxRounds = 1 << 20, 200, 3
)

// CheckAbility implements [engine.Snapshots].
func (e *Engine) CheckAbility(engine.Ability) error { return nil }

// TakeSnapshot implements [engine.Snapshots]. The container is not started, frozen, thawed or
// removed meanwhile.
func (e *Engine) TakeSnapshot(ctx context.Context, id string, options engine.SnapshotOptions) (engine.Snapshot, error) {
	op := "take snapshot " + options.Name + " of container " + id
	if err := layout.CheckName("snapshot", options.Name); err != nil {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, err)
	}
	c, err := e.containers.Lock(ctx, op, id)
	if err != nil {
		return engine.Snapshot{}, err
	}
	defer c.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.background.Closing(), cancel)()
	taken, err := e.takeSnapshot(ctx, c, options)
	if err != nil {
		return engine.Snapshot{}, fmt.Errorf("%s: %w", op, e.explainSnapshot(c, op, err))
	}
	failpoint.Hit(TakenFailpoint)
	return taken.Describe(), nil
}

// explainSnapshot says which of the contract's errors a snapshot has failed with.
func (e *Engine) explainSnapshot(c *containers.Container, op string, err error) error {
	status := c.Status()
	switch {
	case e.background.Closing().Err() != nil:
		return background.ClosedError(op)
	case diskFull(err):
		return fmt.Errorf("%w: %w", engine.ErrNoRoom, err)
	case status == engine.StatusExited && !errors.Is(err, engine.ErrNotRunning):
		// It ended meanwhile, and what is not kept is gone then.
		return fmt.Errorf("%w: it has ended: %w", engine.ErrNotRunning, err)
	}
	return err
}

func (e *Engine) takeSnapshot(ctx context.Context, c *containers.Container, options engine.SnapshotOptions) (taken snapshots.Record, err error) {
	making, has, err := e.snapshots.Begin(options.Name)
	if err != nil || making == nil {
		return has, err
	}
	committed := false
	defer func() {
		if !committed {
			making.Abort()
		}
	}()
	record := c.Record()
	if err := e.checkSnapshot(c, record, options.Memory); err != nil {
		return has, err
	}
	taken = snapshots.Record{
		Labels: options.Labels, ImageID: record.Spec.ImageID, Base: record.Base, Source: record.Source,
	}
	if options.Memory {
		if taken.Memory, err = e.describeMemory(c); err != nil {
			return has, err
		}
	}
	allowed := options.MaxBytes
	maxBytes, err := e.boundSnapshot(taken.Base, allowed)
	if err != nil {
		return has, err
	}
	options.MaxBytes = maxBytes
	last := e.lastCopy(record.Source)
	defer last.close()
	result, unchanged, err := e.copyWritten(ctx, c, making, last, options, &taken)
	if err != nil {
		return has, err
	}
	failpoint.Hit(CopiedFailpoint)
	if unchanged {
		// Where the last one was removed, what it has is counted for this one from now on.
		if _, err := e.boundSnapshot(last.record.Chain(), allowed); err != nil {
			return has, err
		}
		committed = true // or aborted by CommitShared
		return making.CommitShared(taken, last.record)
	}
	if maxBytes > 0 {
		maxBytes -= result.Exclusive
		if taken.Memory != nil {
			maxBytes -= taken.Memory.Bytes
		}
		maxBytes = max(1, maxBytes)
	}
	release, err := e.mergeBase(ctx, c.Name, &taken, maxBytes)
	if err != nil {
		return has, err
	}
	defer release()
	taken.Bytes, taken.Exclusive, taken.Files = result.Bytes, result.Exclusive, result.Files
	committed = true // or aborted by Commit
	return making.Commit(taken, result.Index)
}

// checkSnapshot refuses containers that no snapshot can be taken from.
func (e *Engine) checkSnapshot(c *containers.Container, record containers.Record, memory bool) error {
	switch status := c.Status(); {
	case status == engine.StatusRunning, status == engine.StatusFrozen, status == engine.StatusStopped && !memory:
	case status == engine.StatusRemoving:
		return fmt.Errorf("%w: it is %s", engine.ErrNotFound, status)
	default:
		return fmt.Errorf("%w: it is %s", engine.ErrNotRunning, status)
	}
	runtime, err := e.runtimes.get(record.Runtime)
	if err != nil {
		return err
	}
	switch {
	case memory:
		if err := keepsMemory(runtime); err != nil {
			return err
		}
	case runtime.OwnKernel:
		return fmt.Errorf("%w: snapshot: %s keeps in its memory what a container has written", engine.ErrInvalid, runtime.Name)
	}
	image, release, err := e.images.Hold(record.Spec.ImageID)
	if err != nil {
		return err
	}
	defer release()
	// At least the new snapshot comes on top, and where there are others, one that has them all.
	if layers := min(len(record.Base), 1) + 1 + len(image.Layers) + otherLayers; layers > overlay.MaxLayers() {
		return fmt.Errorf("%w: snapshot: the image has %d layers: this kernel can have no snapshot above them", engine.ErrInvalid, len(image.Layers))
	}
	return nil
}

// copyWritten copies what the container has written to the snapshot, with the memory of its
// processes where that is asked for, and sets how long the processes did not run. Nothing is copied
// when nothing has changed since the last copy: then the processes run on.
func (e *Engine) copyWritten(
	ctx context.Context, c *containers.Container, making *snapshots.Making, last lastCopy, options engine.SnapshotOptions, taken *snapshots.Record,
) (result treecopy.Result, unchanged bool, err error) {
	taken.Created = time.Now().UTC().Round(0) // as it comes back from a record
	if c.Record().Fresh {
		return result, false, e.copyFresh(making, taken.Base)
	}
	from, closeFrom, err := openWritten(c)
	if err != nil {
		return result, false, err
	}
	defer closeFrom()
	tree := &treecopy.Copy{From: from, Staging: making.Staging, MaxBytes: options.MaxBytes, Previous: last.tree}
	if !options.Memory {
		if unchanged, err = tree.Unchanged(ctx); err != nil || unchanged {
			return result, unchanged, err
		}
	}
	compare := func(still time.Time) error {
		if options.Memory {
			// What the container's kernel has of the files in its memory is on the disk then.
			if err := e.writeMemory(ctx, c, making, tree, taken.Memory); err != nil {
				return err
			}
			still = time.Now()
			failpoint.Hit(CheckpointFailpoint)
		}
		result, err = tree.Compare(ctx, making.Tree, still)
		return err
	}
	if c.Status() == engine.StatusRunning {
		if err := stage(ctx, tree); err != nil {
			return result, false, err
		}
		taken.Frozen, err = e.processes.whileHeld(ctx, c, func(still time.Time) error {
			taken.Created = still.UTC().Round(0)
			failpoint.Hit(HeldFailpoint)
			return compare(still)
		})
	} else {
		err = compare(time.Now())
	}
	if err == nil {
		err = tree.Complete(ctx, making.Tree, &result)
	}
	return result, false, err
}

// stage copies most of the files while the processes run.
func stage(ctx context.Context, tree *treecopy.Copy) error {
	for range maxRounds {
		left, err := tree.Stage(ctx)
		if err != nil || left.Bytes <= heldBytes && left.Files <= heldFiles {
			return err
		}
		settled := time.NewTimer(treecopy.Settle)
		select {
		case <-settled.C:
		case <-ctx.Done():
			settled.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// copyFresh makes the snapshot of a container that was rolled back and has written nothing since: a
// tree with nothing but the root of the snapshot below.
func (e *Engine) copyFresh(making *snapshots.Making, base []string) error {
	trees, err := e.snapshots.Trees(base)
	if err != nil || len(trees) == 0 {
		return err
	}
	return likeDirectory(trees[len(trees)-1], making.Tree)
}

// lastCopy is the last snapshot of an upper layer: its unchanged files are linked.
type lastCopy struct {
	record snapshots.Record
	tree   *treecopy.Tree // nil without a last one, or when it cannot be read: then all files are copied
	close  func()         // until then it stays
}

func (e *Engine) lastCopy(source string) lastCopy {
	last, release, ok := e.snapshots.HoldLast(source)
	if source == "" || !ok {
		return lastCopy{close: release}
	}
	index, err := treecopy.ReadIndex(e.snapshots.Index(last.TreeID()))
	var root *os.File
	if err == nil {
		root, err = os.OpenFile(e.snapshots.Tree(last.TreeID()), unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		e.log.Warn().Err(err).Str("snapshot", last.Name).Msg("cannot read the index of the last snapshot: every file is copied")
		return lastCopy{close: release}
	}
	return lastCopy{record: last, tree: &treecopy.Tree{Root: root, Index: index}, close: func() {
		_ = root.Close()
		release()
	}}
}

// openWritten opens the upper layer of a container. The file system that bounds it stays mounted
// until done is called.
func openWritten(c *containers.Container) (upper *os.File, done func(), err error) {
	bounded, closeDisk := c.Disk(), func() {}
	if bounded == nil {
		if _, err := os.Lstat(c.Directory.Filesystem()); err == nil {
			opened, err := openBounded(c)
			if err != nil {
				return nil, nil, fmt.Errorf("file system for what it writes: %w", err)
			}
			bounded, closeDisk = opened, func() { _ = opened.Close() }
		}
	}
	if bounded != nil {
		upper, err = bounded.Open(layout.Upper)
	} else {
		upper, err = os.OpenFile(c.Directory.Upper(), unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		closeDisk()
		return nil, nil, err
	}
	return upper, func() {
		_ = upper.Close()
		closeDisk()
	}, nil
}

// likeSnapshot gives the root of a container that begins with a snapshot the attributes that it has
// there: the root is that of the upper layer, which is new.
func (s *start) likeSnapshot() error {
	if s.again || len(s.chain) == 0 {
		return nil
	}
	upper, done, err := openWritten(s.container)
	if err != nil {
		return err
	}
	defer done()
	return likeDirectory(s.chain[len(s.chain)-1], upper)
}

func likeDirectory(from string, to *os.File) error {
	source, err := os.OpenFile(from, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	return treecopy.DirectoryAttributes(source, to)
}

// holdBase returns the snapshots that a new container lies on, which stay until release is called.
func (e *Engine) holdBase(spec engine.ContainerSpec) (base []string, release func(), err error) {
	if spec.Snapshot == "" {
		return nil, func() {}, nil
	}
	record, release, err := e.snapshots.Hold(spec.Snapshot, spec.ImageID)
	if err != nil {
		return nil, nil, err
	}
	return record.Chain(), release, nil
}

// RemoveSnapshot implements [engine.Snapshots].
func (e *Engine) RemoveSnapshot(_ context.Context, name string) error {
	op := "remove snapshot " + name
	if err := e.background.Check(op); err != nil {
		return err
	}
	if err := e.snapshots.Remove(name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// ListSnapshots implements [engine.Snapshots].
func (e *Engine) ListSnapshots(context.Context) ([]engine.Snapshot, error) {
	if err := e.background.Check("list snapshots"); err != nil {
		return nil, err
	}
	list := e.snapshots.List()
	described := make([]engine.Snapshot, len(list))
	for i, record := range list {
		described[i] = record.Describe()
	}
	return described, nil
}
