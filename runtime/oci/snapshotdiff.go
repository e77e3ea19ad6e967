package oci

import (
	"context"
	"fmt"
	"io"
	"slices"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/internal/snapshots"
	"sandbox.internal/runtime/oci/internal/treediff"
)

// CompareSnapshots implements [engine.Snapshots].
func (e *Engine) CompareSnapshots(ctx context.Context, from, to string, visit func(engine.FileChange) error) error {
	return e.withStates(ctx, "compare snapshot "+to, from, to, func(ctx context.Context, states treediff.States) error {
		return treediff.Compare(ctx, states, visit)
	})
}

// ArchiveSnapshot implements [engine.Snapshots].
func (e *Engine) ArchiveSnapshot(ctx context.Context, from, to string, w io.Writer) error {
	return e.withStates(ctx, "archive snapshot "+to, from, to, func(ctx context.Context, states treediff.States) error {
		return treediff.WriteLayer(ctx, states, w)
	})
}

// withStates calls use with what withSnapshots has of the layers.
func (e *Engine) withStates(ctx context.Context, op, from, to string, use func(ctx context.Context, states treediff.States) error) error {
	return e.withSnapshots(ctx, op, from, to, func(ctx context.Context, _ snapshots.Record, states treediff.States) error {
		return use(ctx, states)
	})
}

// withSnapshots calls use with the layers of two snapshots, or of an image and a snapshot where
// from is empty. They stay meanwhile.
func (e *Engine) withSnapshots(
	ctx context.Context, op, from, to string, use func(ctx context.Context, second snapshots.Record, states treediff.States) error,
) error {
	if err := e.background.Check(op); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.background.Closing(), cancel)()
	first, second, release, err := e.snapshots.HoldTwo(from, to)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer release()
	image, releaseImage, err := e.images.Hold(second.ImageID)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer releaseImage()
	states := treediff.States{From: image.Layers}
	if from != "" {
		if states.From, err = e.layersOf(image.Layers, first.Chain()); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if states.To, err = e.layersOf(image.Layers, second.Chain()); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := use(ctx, second, states); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// layersOf returns the layers of an image and a chain of snapshots, lowest first.
func (e *Engine) layersOf(image, chain []string) ([]string, error) {
	trees, err := e.snapshots.Trees(chain)
	return slices.Concat(image, trees), err
}

// ExportedFailpoint: the image of a snapshot is complete, and the caller does not know it.
const ExportedFailpoint = "snapshot-exported"

// ExportSnapshot implements [engine.Snapshots].
func (e *Engine) ExportSnapshot(ctx context.Context, name, ref string) (engine.Image, error) {
	op := "export snapshot " + name
	var exported images.Image
	err := e.withSnapshots(ctx, op, "", name, func(ctx context.Context, record snapshots.Record, states treediff.States) (err error) {
		exported, err = e.images.Extend(ctx, record.ImageID, ref, record.Created, func(ctx context.Context, w io.Writer) error {
			return treediff.WriteLayer(ctx, states, w)
		})
		return err
	})
	if err != nil && diskFull(err) {
		err = fmt.Errorf("%w: %w", engine.ErrNoRoom, err)
	}
	if err != nil {
		return engine.Image{}, err
	}
	failpoint.Hit(ExportedFailpoint)
	return e.describeImages([]images.Image{exported})[0], nil
}
