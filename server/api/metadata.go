package api

import (
	"context"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/server/lifecycle"
)

func (h *handlers) UpdateMetadata(
	ctx context.Context, request gen.UpdateMetadataRequestObject,
) (gen.UpdateMetadataResponseObject, error) {
	if _, err := h.authorized(ctx, request.SandboxID, lifecycle.Principal.CanUse); err != nil {
		return nil, err
	}
	patch := request.ApplicationMergePatchPlusJSONBody
	if patch == nil {
		patch = request.JSONBody
	}
	metadata, err := h.backend.UpdateMetadata(ctx, request.SandboxID, *patch)
	if err != nil {
		return nil, err
	}
	return gen.UpdateMetadata200JSONResponse{Body: toMetadata(metadata)}, nil
}
