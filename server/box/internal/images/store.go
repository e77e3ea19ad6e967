package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// Store manages the images of an engine.
type Store struct {
	access *Access
	store  engine.ImageStore
}

var _ lifecycle.ImageStore = (*Store)(nil)

// NewStore returns what manages the images of an engine, and forgets the grants of those that it
// has no more.
func NewStore(ctx context.Context, access *Access, store engine.ImageStore) *Store {
	images := &Store{access: access, store: store}
	images.tidy(ctx)
	return images
}

// tidy is no matter of the caller's: what it leaves does no harm.
func (i *Store) tidy(ctx context.Context) {
	if err := i.access.tidy(ctx, i.store); err != nil {
		i.access.log.Warn().Err(err).Msg("cannot update the grants of images")
	}
}

// Images implements lifecycle.ImageStore.
func (i *Store) Images(ctx context.Context) ([]lifecycle.Image, error) {
	list, err := i.store.ListImages(ctx)
	return FromEngine(list), ofImages(err)
}

// Pull implements lifecycle.ImageStore.
func (i *Store) Pull(ctx context.Context, ref string, auth *lifecycle.ImageAuth) (lifecycle.Image, error) {
	id, err := i.access.pullForAll(ctx, ref, RegistryAuth(auth))
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

// RegistryAuth returns credentials as the engine takes them; nil is none.
func RegistryAuth(auth *lifecycle.ImageAuth) *engine.RegistryAuth {
	if auth == nil {
		return nil
	}
	return &engine.RegistryAuth{Username: auth.Username, Password: auth.Password}
}

// Load implements lifecycle.ImageStore.
func (i *Store) Load(ctx context.Context, archive io.Reader) ([]lifecycle.Image, error) {
	list, err := i.store.LoadImages(ctx, archive)
	if errors.Is(err, engine.ErrImage) {
		return nil, lifecycle.Invalidf("body: is no archive of images that can be loaded: %v", err)
	}
	if err == nil {
		err = i.access.Loaded(ctx, list)
	}
	return FromEngine(list), ofImages(err)
}

// Remove implements lifecycle.ImageStore.
func (i *Store) Remove(ctx context.Context, ref string) error {
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
func (i *Store) Prune(ctx context.Context, all bool) (lifecycle.PrunedImages, error) {
	pruned, err := i.store.PruneImages(ctx, all)
	if errors.Is(err, errors.ErrUnsupported) {
		return lifecycle.PrunedImages{}, &lifecycle.Error{Kind: lifecycle.KindUnsupported, Message: err.Error()}
	}
	i.tidy(ctx)
	return lifecycle.PrunedImages{FreedBytes: pruned.Bytes, Recent: pruned.Recent, Grace: pruned.Grace}, ofImages(err)
}

// FromEngine returns images of an engine as clients see them.
func FromEngine(list []engine.Image) []lifecycle.Image {
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
