package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"sandbox.internal/runtime/engine"
)

func encodeKept(k kept) (string, error) {
	encoded, err := json.Marshal(k)
	return string(encoded), err
}

// ListSnapshots implements [engine.Snapshots]. It also removes what is left of snapshots that were
// removed while containers needed them, or of which a service was killed.
func (e *Engine) ListSnapshots(ctx context.Context) ([]engine.Snapshot, error) {
	const op = "list snapshots"
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	all, err := e.listKept(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if err := e.collect(ctx); err != nil {
		e.log.Debug().Err(err).Msg("cannot remove what is left of snapshots; retried when they are listed again")
	}
	return describeAll(all), nil
}

func (e *Engine) listKept(ctx context.Context) ([]kept, error) {
	summaries, err := e.listImages(ctx, filters.Arg("reference", snapshotRepository), filters.Arg("label", snapshotLabel))
	var all []kept
	for _, summary := range summaries {
		k, ok := keptIn(summary.RepoTags, summary.Labels)
		for _, ref := range summary.RepoTags {
			if ok && ref == snapshotRef(k.Name) {
				all = append(all, k)
			}
		}
	}
	return all, err
}

func (e *Engine) listImages(ctx context.Context, arguments ...filters.KeyValuePair) (list []image.Summary, err error) {
	err = e.call(ctx, "list images", forEngine, func(ctx context.Context) (err error) {
		list, err = e.api.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(arguments...)})
		return err
	})
	return list, err
}

// collect removes images of snapshots that were removed and that no container needs any more, and
// images of commits that were not seen through.
func (e *Engine) collect(ctx context.Context) error {
	var errs []error
	removed, err := e.listImages(ctx, filters.Arg("reference", removedRepository))
	errs = append(errs, err)
	for _, summary := range removed {
		for _, ref := range summary.RepoTags {
			if strings.HasPrefix(ref, removedRepository+":") {
				errs = append(errs, e.dropRemoved(ctx, ref))
			}
		}
	}
	if len(e.labels) == 0 { // which of them are this service's is not known
		return errors.Join(errs...)
	}
	mine := []filters.KeyValuePair{filters.Arg("label", commitLabel), filters.Arg("dangling", "true")}
	for name, value := range e.labels {
		mine = append(mine, filters.Arg("label", name+"="+value))
	}
	commits, err := e.listImages(ctx, mine...)
	errs = append(errs, err)
	for _, summary := range commits {
		if !e.isTaking(summary.Labels[commitLabel]) {
			errs = append(errs, e.dropCommit(ctx, summary.ID))
		}
	}
	return errors.Join(errs...)
}

// RemoveSnapshot implements [engine.Snapshots]. The engine would remove an image from under a
// container that does not run, so the image gets another name, and loses that when no container is
// made of it.
func (e *Engine) RemoveSnapshot(ctx context.Context, name string) error {
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", name, err)
	}
	if !snapshotNames.MatchString(name) {
		return nil
	}
	if err := e.removeSnapshot(ctx, name); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", name, err)
	}
	return nil
}

func (e *Engine) removeSnapshot(ctx context.Context, name string) error {
	removed := removedRepository + ":" + name
	err := e.call(ctx, "tag image "+snapshotRef(name), meaning{notFound: engine.ErrNoSnapshot}, func(ctx context.Context) error {
		return e.api.ImageTag(ctx, snapshotRef(name), removed)
	})
	if err == nil {
		err = e.call(ctx, "remove image "+snapshotRef(name), meaning{notFound: engine.ErrNoSnapshot}, func(ctx context.Context) error {
			_, err := e.api.ImageRemove(ctx, snapshotRef(name), image.RemoveOptions{})
			return err
		})
	}
	if err != nil && !errors.Is(err, engine.ErrNoSnapshot) {
		return err
	}
	return e.dropRemoved(ctx, removed)
}

// dropRemoved removes the image of a removed snapshot, unless a container is made of it.
func (e *Engine) dropRemoved(ctx context.Context, ref string) error {
	return e.call(ctx, "remove image "+ref, forEngine, func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, ref, image.RemoveOptions{})
		if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
			return nil
		}
		return err
	})
}

// Suspend implements [engine.Snapshots].
func (e *Engine) Suspend(_ context.Context, id string, _ time.Duration) error {
	return fmt.Errorf("suspend container %s: %w", id, e.CheckAbility(engine.AbilitySuspension))
}

// Hibernate implements [engine.Snapshots].
func (e *Engine) Hibernate(_ context.Context, id string) error {
	return fmt.Errorf("hibernate container %s: %w", id, e.CheckAbility(engine.AbilitySuspension))
}

// CompareSnapshots implements [engine.Snapshots].
func (e *Engine) CompareSnapshots(_ context.Context, _, to string, _ func(engine.FileChange) error) error {
	return fmt.Errorf("compare snapshot %s: %w", to, e.CheckAbility(engine.AbilityComparison))
}

// DigestSnapshot implements [engine.Snapshots].
func (e *Engine) DigestSnapshot(_ context.Context, name string) (string, error) {
	return "", fmt.Errorf("make the digest of snapshot %s: %w", name, e.CheckAbility(engine.AbilityComparison))
}

// ArchiveSnapshot implements [engine.Snapshots].
func (e *Engine) ArchiveSnapshot(_ context.Context, _, to string, _ io.Writer) error {
	return fmt.Errorf("archive snapshot %s: %w", to, e.CheckAbility(engine.AbilityComparison))
}

// ExportSnapshot implements [engine.Snapshots]. The image shares the layers of the snapshot.
func (e *Engine) ExportSnapshot(ctx context.Context, name, ref string) (engine.Image, error) {
	op := "export snapshot " + name
	if err := e.CheckAbility(engine.AbilitySnapshots); err != nil {
		return engine.Image{}, fmt.Errorf("%s: %w", op, err)
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err == nil {
		if _, digested := named.(reference.Canonical); digested || reserved(ref) {
			err = errors.New("an image cannot be given that name")
		}
	}
	if err != nil {
		return engine.Image{}, fmt.Errorf("%s: %w: name %.200q: %w", op, engine.ErrInvalid, ref, err)
	}
	k, found, err := e.findSnapshot(ctx, name)
	if err != nil {
		return engine.Image{}, fmt.Errorf("%s: %w", op, err)
	}
	full := reference.TagNameOnly(named).String()
	id, err := e.loadLayers(ctx, full, found.RootFS.Layers, found, k.Created, nil)
	if err != nil {
		return engine.Image{}, fmt.Errorf("%s: %w", op, explainSnapshot(err))
	}
	return engine.Image{ID: id, Names: []string{full}, Bytes: found.Size, Created: k.Created}, nil
}
