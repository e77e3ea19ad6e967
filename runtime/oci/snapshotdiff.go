package oci

import (
	"context"
	"fmt"
	"io"
	"slices"

	"sandbox.internal/runtime/engine"
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

// withStates calls use with the layers of two snapshots, or of an image and a snapshot where from
// is empty. They stay meanwhile.
func (e *Engine) withStates(ctx context.Context, op, from, to string, use func(ctx context.Context, states treediff.States) error) error {
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
	if err := use(ctx, states); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// layersOf returns the layers of an image and a chain of snapshots, lowest first.
func (e *Engine) layersOf(image, chain []string) ([]string, error) {
	trees, err := e.snapshots.Trees(chain)
	return slices.Concat(image, trees), err
}
