package api

import (
	"context"
	"time"

	"sandbox.internal/execd/internal/freeze"
	"sandbox.internal/execd/internal/holds"
	gen "sandbox.internal/gen/execd"
)

func (h *handlers) Freeze(ctx context.Context, request gen.FreezeRequestObject) (gen.FreezeResponseObject, error) {
	idle, wake := request.Params.IdleMilliseconds, request.Params.Wake
	var err error
	if idle == nil && wake == nil {
		err = h.holds.Pause(ctx)
	} else {
		condition := holds.Condition{Idle: -1, Wakes: value(wake)}
		if idle != nil {
			condition.Idle = time.Duration(*idle) * time.Millisecond
		}
		err = h.holds.Sleep(ctx, condition)
	}
	if err != nil {
		return nil, err
	}
	return gen.Freeze200JSONResponse{}, nil
}

func (h *handlers) Thaw(_ context.Context, request gen.ThawRequestObject) (gen.ThawResponseObject, error) {
	if err := h.holds.Thaw(value(request.Params.OnlyAsleep)); err != nil {
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
