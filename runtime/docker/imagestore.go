package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/jsonmessage"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/registries"
)

var _ engine.ImageStore = (*Engine)(nil)

// noName is what the engine calls an image by that has no name.
const noName = "<none>:<none>"

// The engine's answers to requests about images.
var (
	forImageRemoval = meaning{notFound: engine.ErrNotFound, conflict: engine.ErrImageInUse,
		invalid: engine.ErrNotFound}
	forImageLoad = meaning{invalid: engine.ErrImage, other: engine.ErrImage}
)

// ListImages implements [engine.ImageStore]. The images are all of the engine's, not the service's
// alone, but for those of snapshots.
func (e *Engine) ListImages(ctx context.Context) ([]engine.Image, error) {
	var summaries []image.Summary
	var containers []container.Summary
	err := e.call(ctx, "list images", forEngine, func(ctx context.Context) (err error) {
		if summaries, err = e.api.ImageList(ctx, image.ListOptions{}); err != nil {
			return err
		}
		containers, err = e.api.ContainerList(ctx, container.ListOptions{All: true})
		return err
	})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, c := range containers {
		used[c.ImageID] = true
	}
	var images []engine.Image
	for _, summary := range summaries {
		if hidden(summary.RepoTags, summary.RepoDigests, summary.Labels) {
			continue
		}
		images = append(images, engine.Image{
			ID:      summary.ID,
			Names:   named(summary.RepoTags),
			Bytes:   summary.Size,
			Created: time.Unix(summary.Created, 0).UTC(),
			InUse:   used[summary.ID],
		})
	}
	return images, nil
}

func named(tags []string) []string {
	return slices.DeleteFunc(slices.Clone(tags), func(tag string) bool { return tag == noName })
}

// LoadImages implements [engine.ImageStore]. The engine limits neither the time nor the size, so
// only ctx does. It loads image by image: those before a broken one keep their new names.
func (e *Engine) LoadImages(ctx context.Context, archive io.Reader) ([]engine.Image, error) {
	const op = "load images"
	if err := e.negotiate(ctx); err != nil {
		return nil, explain(op, err, forEngine)
	}
	source := &sourceReader{source: archive}
	refs, err := e.load(ctx, source)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", op, ctx.Err())
	}
	if failed := source.failure(); err != nil && failed != nil {
		return nil, fmt.Errorf("%s: read the archive: %w", op, failed) // and not what the engine says to half an archive
	}
	if err != nil {
		return nil, explainLoad(op, err)
	}
	if len(refs) == 0 {
		return nil, fmt.Errorf("%s: %w: the archive has no image", op, engine.ErrImage)
	}
	all, err := e.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(i engine.Image) bool {
		return !refs[i.ID] && !slices.ContainsFunc(i.Names, func(name string) bool { return refs[name] })
	}), nil
}

// load returns which images the archive had.
func (e *Engine) load(ctx context.Context, archive io.Reader) (map[string]bool, error) {
	loaded, err := e.api.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return nil, err
	}
	defer func() { _ = loaded.Body.Close() }()
	return loadedRefs(loaded.Body)
}

// sourceReader keeps what its source failed with. The client reads in a goroutine of its own.
type sourceReader struct {
	source io.Reader
	mu     sync.Mutex
	failed error
}

func (r *sourceReader) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	if err != nil && err != io.EOF {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.failed = err
	}
	return n, err
}

func (r *sourceReader) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// hostFailures are the words for what the engine's host fails with, whatever the archive is.
var hostFailures = []string{
	"no space left on device", "disk quota exceeded", "input/output error", "read-only file system",
	"too many open files", "cannot allocate memory",
}

// explainLoad is explain for a load. To archives that it cannot load the engine answers with an
// error of its own (500), so everything is the archive's fault that is not known to be another's.
func explainLoad(op string, err error) error {
	says := func(words string) bool { return strings.Contains(err.Error(), words) }
	switch {
	case slices.ContainsFunc(hostFailures, says):
		return fmt.Errorf("%s: the engine's host fails: %w", op, err)
	case errors.Is(forEngine.kindOf(err), engine.ErrUnavailable):
		return explain(op, err, forEngine)
	}
	return explain(op, err, forImageLoad)
}

// loadedRefs reads from the engine's answer which images the archive had.
func loadedRefs(answer io.Reader) (map[string]bool, error) {
	refs := map[string]bool{}
	for decoder := json.NewDecoder(answer); ; {
		var message jsonmessage.JSONMessage
		switch err := decoder.Decode(&message); {
		case err == io.EOF:
			return refs, nil
		case err != nil:
			return nil, errdefs.ErrUnavailable.WithMessage(err.Error())
		case message.Error != nil:
			return nil, message.Error
		}
		line := strings.TrimSpace(message.Stream)
		for _, prefix := range []string{"Loaded image: ", "Loaded image ID: "} {
			if ref, ok := strings.CutPrefix(line, prefix); ok {
				refs[ref] = true
			}
		}
	}
}

// RemoveImage implements [engine.ImageStore]. Of an image that a container is made of, the last
// name cannot be removed.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	op := "remove image " + ref
	isID := registries.IsID(ref)
	if !isID {
		// As in EnsureImage: a short name is no beginning of an id, of whatever image.
		name, err := reference.ParseDockerRef(ref)
		if err != nil {
			return fmt.Errorf("%s: %w: %w", op, engine.ErrNotFound, err)
		}
		ref = name.String()
	}
	if found, err := e.inspectAnyImage(ctx, ref); err == nil && hidden(found.RepoTags, found.RepoDigests, labelsOf(found)) {
		return fmt.Errorf("%s: %w: it is one of a snapshot", op, engine.ErrNotFound)
	}
	return e.call(ctx, op, forImageRemoval, func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, ref, image.RemoveOptions{PruneChildren: true})
		if errdefs.IsConflict(err) && isID {
			err = e.untag(ctx, ref, err)
		}
		return err
	})
}

// untag removes an image by all of its names, where the engine refuses an id that has several, or
// none when a container is made of it.
func (e *Engine) untag(ctx context.Context, id string, refused error) error {
	found, err := e.api.ImageInspect(ctx, id)
	if err != nil {
		return err
	}
	if len(found.RepoTags) < 2 {
		return refused
	}
	containers, err := e.api.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return err
	}
	for _, c := range containers {
		if c.ImageID == found.ID {
			return errdefs.ErrConflict.WithMessage("container " + c.ID + " is made of it")
		}
	}
	for _, name := range found.RepoTags {
		if _, err := e.api.ImageRemove(ctx, name, image.RemoveOptions{PruneChildren: true}); err != nil {
			return err
		}
	}
	return nil
}

// PruneImages implements [engine.ImageStore]. A Docker Engine has images of other programs, which
// are not ours to remove.
func (e *Engine) PruneImages(context.Context, bool) (engine.Pruned, error) {
	return engine.Pruned{}, fmt.Errorf("prune images: %w: a Docker Engine also has the images of other programs; docker image prune removes those that no container uses",
		errors.ErrUnsupported)
}
