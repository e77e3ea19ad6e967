package api

import (
	"context"

	"sandbox.internal/execd/internal/freeze"
	gen "sandbox.internal/gen/execd"
)

func (h *handlers) Freeze(ctx context.Context, _ gen.FreezeRequestObject) (gen.FreezeResponseObject, error) {
	if err := h.freezer.Freeze(ctx); err != nil {
		return nil, err
	}
	return gen.Freeze200JSONResponse{}, nil
}

func (h *handlers) Thaw(context.Context, gen.ThawRequestObject) (gen.ThawResponseObject, error) {
	if err := h.freezer.Thaw(); err != nil {
		return nil, err
	}
	return gen.Thaw200JSONResponse{}, nil
}

// requireThawed returns an error while the sandbox is frozen, for operations that need a process to
// do something.
func (h *handlers) requireThawed() error {
	if h.freezer.Frozen() {
		return freeze.ErrFrozen
	}
	return nil
}
