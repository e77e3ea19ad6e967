package images

import (
	"context"
	"errors"
	"fmt"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/lifecycle"
)

// note puts a grant into memory. It needs a.mu, once a is open.
func (a *Access) note(grant lifecycle.ImageGrant) {
	image := storedImage{grant.Repository, grant.Image}
	if a.known[image] == nil {
		a.known[image] = map[string]bool{}
	}
	a.known[image][grant.Key] = true
}

// drop takes it out again. It needs a.mu.
func (a *Access) drop(grant lifecycle.ImageGrant) {
	image := storedImage{grant.Repository, grant.Image}
	if delete(a.known[image], grant.Key); len(a.known[image]) == 0 {
		delete(a.known, image)
	}
}

// begin notes that a pull with credentials begins.
func (a *Access) begin(ctx context.Context, begun lifecycle.ImageGrant) error {
	a.mu.Lock()
	a.pulling[begun]++
	a.note(begun)
	a.mu.Unlock()
	err := a.change(ctx, []lifecycle.ImageGrant{begun}, nil)
	if err != nil {
		err = errors.Join(err, a.end(context.WithoutCancel(ctx), begun))
	}
	return err
}

// end notes that it has ended, and what it brought is noted.
func (a *Access) end(ctx context.Context, begun lifecycle.ImageGrant) error {
	a.mu.Lock()
	a.pulling[begun]--
	last := a.pulling[begun] == 0
	if last {
		delete(a.pulling, begun)
		if last = !a.stays[begun]; last {
			a.drop(begun)
		}
	}
	a.mu.Unlock()
	if !last {
		return nil
	}
	// Another pull of the key may have begun: what it has written is written again.
	err := a.change(ctx, nil, []lifecycle.ImageGrant{begun})
	a.mu.Lock()
	again := a.pulling[begun] > 0
	a.mu.Unlock()
	if again {
		err = errors.Join(err, a.change(ctx, []lifecycle.ImageGrant{begun}, nil))
	}
	return err
}

// add makes a grant durable.
func (a *Access) add(ctx context.Context, grant lifecycle.ImageGrant) error {
	a.mu.Lock()
	a.note(grant)
	a.mu.Unlock()
	return a.change(ctx, []lifecycle.ImageGrant{grant}, nil)
}

func (a *Access) change(ctx context.Context, add, remove []lifecycle.ImageGrant) error {
	if a.grants == nil {
		return nil
	}
	if err := a.grants.ChangeImageGrants(ctx, add, remove); err != nil {
		return fmt.Errorf("save who may have an image: %w", err)
	}
	return nil
}

// tidy forgets grants of images that the engine no longer has. It bounds them: an engine has so
// many images.
func (a *Access) tidy(ctx context.Context, store engine.ImageStore) error {
	var before []lifecycle.ImageGrant // those that come while the engine is asked may be of images that it does not list yet
	a.mu.Lock()
	for image, keys := range a.known {
		for key := range keys {
			if image.id != "" {
				before = append(before, lifecycle.ImageGrant{Repository: image.repository, Image: image.id, Key: key})
			}
		}
	}
	a.mu.Unlock()
	if len(before) == 0 {
		return nil
	}
	list, err := store.ListImages(ctx)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, image := range list {
		there[image.ID] = true
	}
	var gone []lifecycle.ImageGrant
	a.mu.Lock()
	for _, grant := range before {
		if !there[grant.Image] {
			gone = append(gone, grant)
			a.drop(grant)
		}
	}
	a.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	return a.change(ctx, nil, gone)
}
