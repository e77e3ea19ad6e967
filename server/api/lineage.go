package api

import (
	"context"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
)

// GetLineage shows what the caller sees in lists.
func (h *handlers) GetLineage(
	ctx context.Context, request gen.GetLineageRequestObject,
) (gen.GetLineageResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanRead); err != nil {
		return nil, err
	}
	store, err := h.snapshotStore()
	if err != nil {
		return nil, err
	}
	lineage, err := store.Lineage(ctx, request.SandboxID, caller(ctx).ListScope())
	if err != nil {
		return nil, err
	}
	body := gen.Lineage{
		Snapshots: make([]gen.Snapshot, len(lineage.Snapshots)), Sandboxes: make([]gen.LineageSandbox, len(lineage.Sandboxes)),
		Truncated: lineage.Truncated,
	}
	for i, s := range lineage.Snapshots {
		body.Snapshots[i] = toSnapshot(s)
	}
	for i, s := range lineage.Sandboxes {
		body.Sandboxes[i] = gen.LineageSandbox{
			ID: s.ID, SnapshotID: present(s.SnapshotID), ParentID: present(s.ParentID), State: gen.SandboxState(s.Status.State), CreatedAt: s.CreatedAt,
		}
	}
	return gen.GetLineage200JSONResponse{Body: body}, nil
}
