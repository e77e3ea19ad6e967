package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/oci/images"
	"sandbox.internal/runtime/oci/internal/layout"
)

var _ engine.ImageStore = (*Engine)(nil)

// EnsureImage implements [engine.Engine].
func (e *Engine) EnsureImage(ctx context.Context, ref string, auth *engine.RegistryAuth, progress func(string)) (string, error) {
	if err := e.background.Check("get image " + ref); err != nil {
		return "", err
	}
	id, err := e.images.Ensure(ctx, ref, auth, progress)
	if err != nil {
		return "", fmt.Errorf("get image %s: %w", ref, err)
	}
	return id, nil
}

// FindImage implements [engine.Engine].
func (e *Engine) FindImage(_ context.Context, ref string) (engine.Image, error) {
	if err := e.background.Check("look for image " + ref); err != nil {
		return engine.Image{}, err
	}
	found, err := e.images.Find(ref)
	if err != nil {
		return engine.Image{}, err
	}
	return engine.Image{
		ID: found.ID, Names: found.Names, Bytes: found.Bytes, Created: found.Created,
		Entrypoint: slices.Clone(found.Config.Entrypoint), Cmd: slices.Clone(found.Config.Cmd),
	}, nil
}

// ProveAccess implements [engine.Engine].
func (e *Engine) ProveAccess(ctx context.Context, ref string, auth *engine.RegistryAuth) error {
	if err := e.background.Check("ask for image " + ref); err != nil {
		return err
	}
	return e.images.Prove(ctx, ref, auth)
}

// ListImages implements [engine.ImageStore].
func (e *Engine) ListImages(context.Context) ([]engine.Image, error) {
	if err := e.background.Check("list images"); err != nil {
		return nil, err
	}
	return e.describeImages(e.images.List()), nil
}

// LoadImages implements [engine.ImageStore].
func (e *Engine) LoadImages(ctx context.Context, archive io.Reader) ([]engine.Image, error) {
	if err := e.background.Check("load images"); err != nil {
		return nil, err
	}
	loaded, err := e.images.Load(ctx, archive, nil)
	if err != nil {
		return nil, err
	}
	return e.describeImages(loaded), nil
}

// RemoveImage implements [engine.ImageStore].
func (e *Engine) RemoveImage(_ context.Context, ref string) error {
	if err := e.background.Check("remove image " + ref); err != nil {
		return err
	}
	if err := e.images.Remove(ref); errors.Is(err, engine.ErrImage) {
		return fmt.Errorf("%w: %w", engine.ErrNotFound, err)
	} else if err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	return nil
}

// PruneImages implements [engine.ImageStore].
func (e *Engine) PruneImages(ctx context.Context, all bool) (engine.Pruned, error) {
	if err := e.background.Check("prune images"); err != nil {
		return engine.Pruned{}, err
	}
	freed, err := e.images.Prune(ctx, all)
	pruned := engine.Pruned{Bytes: freed, Recent: e.images.Recent(all), Grace: e.options.Images.Grace}
	if err != nil {
		return pruned, fmt.Errorf("prune images: %w", err)
	}
	return pruned, nil
}

// imagesInUse returns the ids of the images that containers and snapshots need.
func (e *Engine) imagesInUse() []string {
	return append(e.containers.Images(), e.snapshots.Images()...)
}

func (e *Engine) describeImages(list []images.Image) []engine.Image {
	using := e.imagesInUse()
	described := make([]engine.Image, len(list))
	for i, image := range list {
		described[i] = engine.Image{
			ID: image.ID, Names: image.Names, Bytes: image.Bytes, Created: image.Created, InUse: slices.Contains(using, image.ID),
		}
	}
	return described
}

// loadedArchive is what [Engine.LoadArchive] keeps of a file.
type loadedArchive struct {
	Bytes    int64
	Modified time.Time
	Images   []string // ids
}

// LoadArchive adds the images of a file, as LoadImages does, unless they came from the same file,
// which has not changed since, and are still here. It must not be called from several goroutines at
// once.
func (e *Engine) LoadArchive(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	indexPath := e.layout.Archives()
	known := map[string]loadedArchive{}
	if content, err := os.ReadFile(indexPath); err == nil {
		_ = json.Unmarshal(content, &known) // what cannot be read is loaded again
	}
	if before, ok := known[path]; ok && before.Bytes == info.Size() && before.Modified.Equal(info.ModTime()) && e.hasImages(before.Images) {
		return nil
	}
	loaded, err := e.LoadImages(ctx, file)
	if err != nil {
		return err
	}
	now := loadedArchive{Bytes: info.Size(), Modified: info.ModTime()}
	for _, image := range loaded {
		now.Images = append(now.Images, image.ID)
	}
	known[path] = now
	content, err := json.Marshal(known)
	if err != nil {
		return err
	}
	return layout.ReplaceFile(indexPath, content)
}

// hasImages reports whether all of them are here, under a name.
func (e *Engine) hasImages(ids []string) bool {
	list := e.images.List()
	return len(ids) > 0 && !slices.ContainsFunc(ids, func(id string) bool {
		return !slices.ContainsFunc(list, func(image images.Image) bool { return image.ID == id && len(image.Names) > 0 })
	})
}
