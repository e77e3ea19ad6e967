package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Images manages the images of an engine.
type Images struct {
	access *imageAccess
	store  engine.ImageStore
}

var _ lifecycle.ImageStore = (*Images)(nil)

// Images returns what manages the images of the engine, where store is the engine's own. Pulls go
// through the engine, which may be measured.
func (c *Containers) Images(ctx context.Context, store engine.ImageStore) *Images {
	images := &Images{access: c.images, store: store}
	images.tidy(ctx)
	return images
}

// tidy is no matter of the caller's: what it leaves does no harm.
func (i *Images) tidy(ctx context.Context) {
	if err := i.access.tidy(ctx, i.store); err != nil {
		i.access.log.Warn().Err(err).Msg("cannot update the grants of images")
	}
}

// Images implements lifecycle.ImageStore.
func (i *Images) Images(ctx context.Context) ([]lifecycle.Image, error) {
	list, err := i.store.ListImages(ctx)
	return fromEngine(list), ofImages(err)
}

// Pull implements lifecycle.ImageStore.
func (i *Images) Pull(ctx context.Context, ref string, auth *lifecycle.ImageAuth) (lifecycle.Image, error) {
	id, err := i.access.pullForAll(ctx, ref, registryAuth(auth))
	if errors.Is(err, engine.ErrImage) {
		return lifecycle.Image{}, &lifecycle.Error{Kind: lifecycle.KindImagePull, Message: err.Error()}
	}
	if err != nil {
		return lifecycle.Image{}, ofImages(err)
	}
	list, err := i.Images(ctx)
	if err != nil {
		return lifecycle.Image{}, err
	}
	at := slices.IndexFunc(list, func(image lifecycle.Image) bool { return image.ID == id })
	if at < 0 {
		return lifecycle.Image{}, &lifecycle.Error{Kind: lifecycle.KindConflict, Message: fmt.Sprintf("image %q was removed while it was pulled", ref)}
	}
	return list[at], nil
}

// registryAuth returns credentials as the engine takes them; nil is none.
func registryAuth(auth *lifecycle.ImageAuth) *engine.RegistryAuth {
	if auth == nil {
		return nil
	}
	return &engine.RegistryAuth{Username: auth.Username, Password: auth.Password}
}

// Load implements lifecycle.ImageStore.
func (i *Images) Load(ctx context.Context, archive io.Reader) ([]lifecycle.Image, error) {
	list, err := i.store.LoadImages(ctx, archive)
	if errors.Is(err, engine.ErrImage) {
		return nil, lifecycle.Invalidf("body: is no archive of images that can be loaded: %v", err)
	}
	if err == nil {
		err = i.access.loaded(ctx, list)
	}
	return fromEngine(list), ofImages(err)
}

// Remove implements lifecycle.ImageStore.
func (i *Images) Remove(ctx context.Context, ref string) error {
	err := i.store.RemoveImage(ctx, ref)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return &lifecycle.Error{Kind: lifecycle.KindNoImage, Message: fmt.Sprintf("there is no image %q", ref)}
	case errors.Is(err, engine.ErrImageInUse):
		return lifecycle.Conflictf("image %q is in use: %v", ref, err)
	case err == nil:
		i.tidy(ctx)
	}
	return ofImages(err)
}

// Prune implements lifecycle.ImageStore.
func (i *Images) Prune(ctx context.Context, all bool) (lifecycle.PrunedImages, error) {
	pruned, err := i.store.PruneImages(ctx, all)
	if errors.Is(err, errors.ErrUnsupported) {
		return lifecycle.PrunedImages{}, &lifecycle.Error{Kind: lifecycle.KindUnsupported, Message: err.Error()}
	}
	i.tidy(ctx)
	return lifecycle.PrunedImages{FreedBytes: pruned.Bytes, Recent: pruned.Recent, Grace: pruned.Grace}, ofImages(err)
}

func fromEngine(list []engine.Image) []lifecycle.Image {
	images := make([]lifecycle.Image, len(list))
	for i, image := range list {
		images[i] = lifecycle.Image{ID: image.ID, Names: image.Names, Bytes: image.Bytes, CreatedAt: image.Created, InUse: image.InUse}
	}
	return images
}

// ofImages is an engine's error as a client may see it. What is not known stays internal.
func ofImages(err error) error {
	if errors.Is(err, engine.ErrUnavailable) {
		return fmt.Errorf("%w: %w", lifecycle.Unavailable("the container engine"), err)
	}
	return err
}
