package oci

import (
	"context"
	"fmt"
	"time"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/treediff"
	"sandbox.internal/runtime/oci/overlay"
)

// defaultChain is how many snapshots a container lies on before they are merged: the kernel asks
// each layer for a file that there is not. Only the linker sets another number (-X), in programs
// for tests (test/program).
var defaultChain = "32"

// otherLayers are the layers of a container besides those of its image and the snapshots that it
// lies on: one for its writes, and at the bottom that of its mounts.
const otherLayers = 2

// MergedFailpoint: what the container lies on is one snapshot, and the new one has no record.
const MergedFailpoint = "snapshot-merged"

// mergeBase has a new snapshot lie on one in place of many, which has what all of these have
// together. The container goes on with those that it has mounted. The snapshot stays until release
// is called. maxBytes is what there is left for it on the disk; 0 means no bound.
func (e *Engine) mergeBase(ctx context.Context, container string, taken *snapshots.Record, maxBytes int64) (release func(), err error) {
	image, releaseImage, err := e.images.Hold(taken.ImageID)
	if err != nil {
		return nil, err
	}
	defer releaseImage()
	// The new one comes on top.
	fits := len(taken.Base)+1+len(image.Layers)+otherLayers <= overlay.MaxLayers()
	if fits && len(taken.Base) < e.options.Chain || len(taken.Base) < 2 {
		return func() {}, nil
	}
	merged, release, err := e.snapshots.Merge(ctx, taken.ImageID, taken.Base, func(making *snapshots.Making) (snapshots.Record, error) {
		return e.merge(ctx, image.Layers, taken.Base, making, maxBytes)
	})
	switch {
	case err == nil:
		taken.Base = []string{merged.ID}
		failpoint.Hit(MergedFailpoint)
		return release, nil
	case fits && ctx.Err() == nil:
		e.log.Warn().Err(err).Str("container", container).Int("snapshots", len(taken.Base)).
			Msg("cannot merge the snapshots that a container lies on; retried with its next snapshot")
		return func() {}, nil
	}
	return nil, fmt.Errorf("merge the %d snapshots that the container lies on: %w", len(taken.Base), err)
}

// merge makes the tree of a snapshot that has what a chain has above an image.
func (e *Engine) merge(ctx context.Context, image, chain []string, making *snapshots.Making, maxBytes int64) (record snapshots.Record, err error) {
	states := treediff.States{From: image}
	if states.To, err = e.layersOf(image, chain); err != nil {
		return record, err
	}
	merged, err := treediff.Merge(ctx, states, making.Tree, maxBytes)
	if err != nil {
		return record, err
	}
	return snapshots.Record{
		Created: time.Now().UTC().Round(0), Bytes: merged.Bytes, Exclusive: merged.Exclusive, Files: merged.Files,
	}, nil
}

// boundSnapshot returns how many bytes a new snapshot on a chain may add to the disk, of those that
// its caller allows: it is counted with what removed snapshots of the chain have.
func (e *Engine) boundSnapshot(chain []string, maxBytes int64) (int64, error) {
	if maxBytes == 0 {
		return 0, nil
	}
	if maxBytes -= e.snapshots.Uncounted(chain); maxBytes <= 0 {
		return 0, fmt.Errorf("%w: removed snapshots whose files it needs have more bytes than may be added", engine.ErrSnapshotTooLarge)
	}
	return maxBytes, nil
}
