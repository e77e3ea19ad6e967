package api

import (
	"context"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// archiveTime is how long each part of an archive may take to arrive: docker save writes an image
// to a temporary file before it prints anything.
const archiveTime = 10 * time.Minute

// imageStore returns what manages images, for an administrator and where there is such.
func (h *handlers) imageStore(ctx context.Context) (lifecycle.ImageStore, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	if h.images == nil {
		return nil, lifecycle.Unsupportedf(
			"this service does not manage images: the nodes of its cluster pull those that sandboxes need")
	}
	return h.images, nil
}

func (h *handlers) ListImages(
	ctx context.Context, _ gen.ListImagesRequestObject,
) (gen.ListImagesResponseObject, error) {
	store, err := h.imageStore(ctx)
	if err != nil {
		return nil, err
	}
	images, err := store.Images(ctx)
	if err != nil {
		return nil, err
	}
	return gen.ListImages200JSONResponse{ImagesJSONResponse: toStoredImages(images)}, nil
}

func (h *handlers) PullImage(
	ctx context.Context, request gen.PullImageRequestObject,
) (gen.PullImageResponseObject, error) {
	store, err := h.imageStore(ctx)
	if err != nil {
		return nil, err
	}
	serve.LogField(ctx, "image", request.Body.Image.URI)
	var auth *lifecycle.ImageAuth
	if given := request.Body.Image.Auth; given != nil {
		auth = &lifecycle.ImageAuth{Username: given.Username, Password: given.Password}
	}
	image, err := store.Pull(ctx, request.Body.Image.URI, auth)
	if err != nil {
		return nil, err
	}
	return gen.PullImage200JSONResponse{Body: toStoredImage(image)}, nil
}

func (h *handlers) LoadImages(
	ctx context.Context, request gen.LoadImagesRequestObject,
) (gen.LoadImagesResponseObject, error) {
	store, err := h.imageStore(ctx)
	if err != nil {
		return nil, err
	}
	serve.SetBodyTime(ctx, archiveTime)
	images, err := store.Load(ctx, request.Body)
	if err != nil {
		return nil, err
	}
	return gen.LoadImages200JSONResponse{ImagesJSONResponse: toStoredImages(images)}, nil
}

func (h *handlers) RemoveImage(
	ctx context.Context, request gen.RemoveImageRequestObject,
) (gen.RemoveImageResponseObject, error) {
	store, err := h.imageStore(ctx)
	if err != nil {
		return nil, err
	}
	serve.LogField(ctx, "image", request.ImageName)
	if err := store.Remove(ctx, request.ImageName); err != nil {
		return nil, err
	}
	return gen.RemoveImage204Response{}, nil
}

func (h *handlers) PruneImages(
	ctx context.Context, request gen.PruneImagesRequestObject,
) (gen.PruneImagesResponseObject, error) {
	store, err := h.imageStore(ctx)
	if err != nil {
		return nil, err
	}
	pruned, err := store.Prune(ctx, value(request.Params.All))
	if err != nil {
		return nil, err
	}
	return gen.PruneImages200JSONResponse{Body: gen.PrunedImages{
		FreedBytes: pruned.FreedBytes, Recent: &pruned.Recent, GraceSeconds: new(int(pruned.Grace / time.Second)),
	}}, nil
}

func toStoredImages(images []lifecycle.Image) gen.ImagesJSONResponse {
	list := gen.StoredImageList{Items: make([]gen.StoredImage, len(images))}
	for i, image := range images {
		list.Items[i] = toStoredImage(image)
	}
	return gen.ImagesJSONResponse{Body: list}
}

func toStoredImage(image lifecycle.Image) gen.StoredImage {
	return gen.StoredImage{
		ID:        image.ID,
		Names:     append([]string{}, image.Names...), // never nil
		Bytes:     image.Bytes,
		CreatedAt: image.CreatedAt,
		InUse:     image.InUse,
	}
}
