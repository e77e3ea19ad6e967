package host

import (
	"context"
	"errors"
	"io"
	"sync"

	"sandbox.internal/server/lifecycle"
)

const (
	// concurrentDiffs bounds how many snapshots are compared at once, and archivesOfOwner how many
	// archives are written at once for an owner: their clients may be slow.
	concurrentDiffs, archivesOfOwner = 2, 2
)

// errEnoughFiles ends a comparison whose list is full.
var errEnoughFiles = errors.New("the list is full")

// DiffSnapshot implements lifecycle.SnapshotStore.
func (h *Host) DiffSnapshot(ctx context.Context, id, to string, limit int) (lifecycle.SnapshotDiff, error) {
	var diff lifecycle.SnapshotDiff
	if err := h.options.Boxes.ComparisonUnsupported(); err != nil {
		return diff, err
	}
	d, err := h.beginDiff(ctx, id, to)
	if err != nil {
		return diff, err
	}
	defer d.done()
	leave, err := h.snapshots.diffs.enter(d.ctx, d.owner)
	if err != nil {
		return diff, h.diffEnded(err)
	}
	defer leave()
	diff.Items = []lifecycle.FileChange{}
	err = h.options.Boxes.CompareSnapshots(d.ctx, d.from, d.to, func(f lifecycle.FileChange) error {
		if diff.Truncated = len(diff.Items) == limit; diff.Truncated {
			return errEnoughFiles
		}
		diff.Items = append(diff.Items, f)
		return nil
	})
	if err != nil && !errors.Is(err, errEnoughFiles) {
		return lifecycle.SnapshotDiff{}, h.diffEnded(err)
	}
	return diff, nil
}

// ArchiveSnapshotDiff implements lifecycle.SnapshotStore.
func (h *Host) ArchiveSnapshotDiff(ctx context.Context, id, to string) (io.ReadCloser, error) {
	if err := h.options.Boxes.ComparisonUnsupported(); err != nil {
		return nil, err
	}
	d, err := h.beginDiff(ctx, id, to)
	if err != nil {
		return nil, err
	}
	leave, err := h.snapshots.archive(d.owner)
	if err != nil {
		d.done()
		return nil, err
	}
	from, into := io.Pipe()
	archive := &archive{PipeReader: from, ended: make(chan struct{})}
	go func() {
		defer close(archive.ended)
		defer leave()
		defer d.done()
		err := h.options.Boxes.ArchiveSnapshot(d.ctx, d.from, d.to, into)
		_ = into.CloseWithError(h.diffEnded(err)) // it never fails
	}()
	return archive, nil
}

// ExportSnapshot implements lifecycle.SnapshotStore.
func (h *Host) ExportSnapshot(ctx context.Context, id, name string) (lifecycle.Image, error) {
	d, err := h.beginDiff(ctx, id, "")
	if err != nil {
		return lifecycle.Image{}, err
	}
	defer d.done()
	leave, err := h.snapshots.diffs.enter(d.ctx, d.owner)
	if err != nil {
		return lifecycle.Image{}, h.diffEnded(err)
	}
	defer leave()
	image, err := h.options.Boxes.ExportSnapshot(d.ctx, id, name)
	if err != nil {
		return lifecycle.Image{}, h.diffEnded(err)
	}
	h.options.Logger.Info().Str("snapshot_id", id).Str("image", name).Str("image_id", image.ID).Msg("image made of a snapshot")
	return image, nil
}

// archive is read while it is written.
type archive struct {
	*io.PipeReader
	ended chan struct{}
}

// Close ends the writing, and returns when the snapshots are not read any more.
func (a *archive) Close() error {
	err := a.PipeReader.Close()
	<-a.ended
	return err
}

// diff is a comparison of two snapshots, or of an image and a snapshot, which stay until done is
// called.
type diff struct {
	ctx             context.Context //nolint:containedctx // ends with the request and with the service
	from, to, owner string
	done            func()
}

func (h *Host) beginDiff(ctx context.Context, id, to string) (diff, error) {
	if err := h.options.Boxes.SnapshotsUnsupported(); err != nil {
		return diff{}, err
	}
	leave, err := h.enter()
	if err != nil {
		return diff{}, err
	}
	defer leave()
	any := func(*lifecycle.Snapshot) bool { return true }
	first, release, err := h.snapshots.use(id, any)
	if err != nil {
		return diff{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(h.ctx, cancel)
	d := diff{ctx: ctx, to: id, owner: first.Owner, done: func() {
		stop()
		cancel()
		release()
	}}
	if to == "" {
		return d, nil
	}
	second, releaseSecond, err := h.snapshots.use(to, any)
	if err == nil && second.EngineImage != first.EngineImage {
		releaseSecond()
		err = lifecycle.Conflictf("cannot compare: snapshot %s is of the image %s, and snapshot %s of another one, %s", id, first.Image, to, second.Image)
	}
	if err != nil {
		d.done()
		return diff{}, err
	}
	alone := d.done
	d.from, d.to, d.done = id, to, func() {
		alone()
		releaseSecond()
	}
	return d, nil
}

// diffEnded returns what a client sees of an error of a comparison; nil for none.
func (h *Host) diffEnded(err error) error {
	switch {
	case err == nil:
		return nil
	case h.ctx.Err() != nil:
		return lifecycle.Stopping()
	case errors.Is(err, lifecycle.ErrBoxUnavailable):
		return errors.Join(lifecycle.Unavailable("the container engine"), err)
	}
	return err
}

// archive counts an archive of an owner until leave is called.
func (s *snapshots) archive(owner string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.archives[owner] >= archivesOfOwner {
		conflict := lifecycle.Conflictf("archives of snapshots of API key %q: %d are being sent; wait until one is complete", owner, archivesOfOwner)
		conflict.RetryAfter = 1
		return nil, conflict
	}
	s.archives[owner]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.archives[owner]--; s.archives[owner] == 0 {
			delete(s.archives, owner)
		}
	}), nil
}
