package sandbox

import (
	"context"
	"io"
	"net/http"

	"sandbox.internal/clients/go/lifecycle"
)

// Images manages the images that the service's engine has. The methods need a key with the role
// admin, and a service that manages images: other services respond with 501.
type Images struct{ client *Client }

// List returns the images that the engine has.
func (i Images) List(ctx context.Context) ([]StoredImage, error) {
	var list lifecycle.StoredImageList
	err := i.client.call(ctx, repeatable, &list, func(ctx context.Context) (*http.Response, error) {
		return i.client.service.ListImages(ctx)
	})
	return list.Items, err
}

// PullOptions are for a private registry. Nil, and what is empty, means a public one.
type PullOptions struct {
	Username, Password string
}

// Pull returns the image with that reference, after a download when the engine does not have it.
func (i Images) Pull(ctx context.Context, ref string, o *PullOptions) (StoredImage, error) {
	request := lifecycle.PullImageRequest{Image: lifecycle.Image{URI: ref}}
	if o != nil && *o != (PullOptions{}) {
		request.Image.Auth = &lifecycle.ImageAuth{Username: o.Username, Password: o.Password}
	}
	var image StoredImage
	err := i.client.call(ctx, once, &image, func(ctx context.Context) (*http.Response, error) {
		return i.client.service.PullImage(ctx, request)
	})
	return image, err
}

// Load adds the images of an archive, as docker save writes it or an OCI image layout in a tar
// file, and returns them. It is not repeated when the connection is cut.
func (i Images) Load(ctx context.Context, archive io.Reader) ([]StoredImage, error) {
	var list lifecycle.StoredImageList
	err := i.client.call(ctx, never, &list, func(ctx context.Context) (*http.Response, error) {
		return i.client.service.LoadImagesWithBody(ctx, "application/x-tar", archive)
	})
	return list.Items, err
}

// Remove takes away a name of an image, or with its id all of them.
func (i Images) Remove(ctx context.Context, ref string) error {
	return i.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return i.client.service.RemoveImage(ctx, ref)
	})
}

// Prune removes images that have no name and no sandbox, with all also those that have a name, and
// returns how many bytes that freed, and how many images stay only because they were loaded or used
// a short time ago.
func (i Images) Prune(ctx context.Context, all bool) (PrunedImages, error) {
	var pruned PrunedImages
	err := i.client.call(ctx, once, &pruned, func(ctx context.Context) (*http.Response, error) {
		return i.client.service.PruneImages(ctx, &lifecycle.PruneImagesParams{All: optional(all)})
	})
	return pruned, err
}
