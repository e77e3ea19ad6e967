// Package images gets images from an engine for those who may have them.
package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/registries"
	"sandbox.internal/server/lifecycle"
)

// An engine gives an image that it has to whoever names it. So the service keeps which images came
// with the credentials of an API key, and gives one of these to keys alone that have shown its
// registry credentials of their own, or that need none there. Images that came without credentials,
// that an administrator pulled or loaded, and that other programs put into the engine, are every
// key's.

// Grants keeps which keys may have which images. Changes are durable when the call returns.
type Grants interface {
	ImageGrants(ctx context.Context) ([]lifecycle.ImageGrant, error)
	ChangeImageGrants(ctx context.Context, add, remove []lifecycle.ImageGrant) error
}

// everyKey is the [lifecycle.ImageGrant].Key of an image that any key may have.
const everyKey = ""

// Access gets images for sandboxes.
type Access struct {
	engine engine.Engine
	grants Grants // nil: they are kept in memory alone
	log    zerolog.Logger

	mu sync.Mutex // guards what follows
	// known has the keys of each image that is not every key's, and by the empty id those whose
	// pulls with credentials have not ended.
	known   map[storedImage]map[string]bool
	pulling map[lifecycle.ImageGrant]int  // pulls with credentials that are under way
	stays   map[lifecycle.ImageGrant]bool // of those that a crash ended, so that the image they brought is unknown
}

// storedImage is an image under the names of one repository.
type storedImage struct{ repository, id string }

// Open reads the grants.
func Open(ctx context.Context, from engine.Engine, grants Grants, log zerolog.Logger) (*Access, error) {
	a := &Access{
		engine: from, grants: grants, log: log,
		known: map[storedImage]map[string]bool{}, pulling: map[lifecycle.ImageGrant]int{}, stays: map[lifecycle.ImageGrant]bool{},
	}
	if a.grants == nil {
		return a, nil
	}
	known, err := a.grants.ImageGrants(ctx)
	if err != nil {
		return nil, fmt.Errorf("read who may have which images: %w", err)
	}
	for _, grant := range known {
		a.note(grant)
		if grant.Image == "" {
			a.stays[grant] = true
		}
	}
	return a, nil
}

// Request is an image that a sandbox is to be made of.
type Request struct {
	Ref   string
	Auth  *engine.RegistryAuth
	Key   string // the name of the API key
	Admin bool   // the key has the role admin
}

// Ensure returns the id of the image, and pulls it when the engine does not have it. It returns
// [engine.ErrImage] for one that cannot be had, or not by this key.
func (a *Access) Ensure(ctx context.Context, r Request, progress func(string)) (id string, err error) {
	ctx = engine.WithCaller(ctx, engine.Caller{Name: r.Key, Guest: !r.Admin})
	var name registries.Name
	if !registries.IsID(r.Ref) {
		if name, err = registries.Parse(r.Ref); err != nil {
			return "", fmt.Errorf("image %q: %w: %w", r.Ref, engine.ErrImage, err)
		}
	}
	found, err := a.engine.FindImage(ctx, r.Ref)
	switch {
	case err == nil && (r.Admin || a.permits(found, name.Repository, r.Key)):
		return found.ID, nil
	case err == nil:
		return found.ID, a.prove(ctx, r, name, found.ID)
	case !errors.Is(err, engine.ErrImage) || registries.IsID(r.Ref):
		return "", err
	case name.Own():
		return "", notLoaded(r.Ref)
	}
	if r.Auth != nil && r.Key != "" {
		return a.pullWithCredentials(ctx, r, name, progress)
	}
	if id, err = a.engine.EnsureImage(ctx, r.Ref, r.Auth, progress); err != nil {
		return "", err
	}
	if !r.Admin && a.contested(storedImage{name.Repository, id}, lifecycle.ImageGrant{}) { // it may have come by another key's pull meanwhile
		return id, a.prove(ctx, r, name, id)
	}
	return id, nil
}

// pullWithCredentials pulls an image that becomes that of its key. What it brings is noted before:
// a crash must not make it every key's.
func (a *Access) pullWithCredentials(ctx context.Context, r Request, name registries.Name, progress func(string)) (id string, err error) {
	begun := lifecycle.ImageGrant{Repository: name.Repository, Key: r.Key}
	if err := a.begin(ctx, begun); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, a.end(context.WithoutCancel(ctx), begun)) }()
	if id, err = a.engine.EnsureImage(ctx, r.Ref, r.Auth, progress); err != nil {
		return "", err
	}
	if a.contested(storedImage{name.Repository, id}, begun) {
		return id, a.prove(ctx, r, name, id)
	}
	return id, a.add(context.WithoutCancel(ctx), lifecycle.ImageGrant{Repository: name.Repository, Image: id, Key: r.Key})
}

// prove has the registry say whether the key may have an image that the engine has, and remembers
// that it may.
func (a *Access) prove(ctx context.Context, r Request, name registries.Name, id string) error {
	const words = "was pulled with credentials of another API key"
	switch {
	case registries.IsID(r.Ref):
		return fmt.Errorf("image %s: %w: it %s: name it as its registry does, with credentials for that", r.Ref, engine.ErrImage, words)
	case name.Own():
		return notLoaded(r.Ref)
	}
	if err := a.engine.ProveAccess(ctx, r.Ref, r.Auth); err != nil {
		return fmt.Errorf("image %s %s, and its registry does not let this one have it (image.auth): %w", r.Ref, words, err)
	}
	grant := lifecycle.ImageGrant{Repository: name.Repository, Image: id, Key: r.Key}
	if r.Auth == nil {
		grant.Key = everyKey
	}
	return a.add(context.WithoutCancel(ctx), grant)
}

// Own returns the id of an image of the service itself. Only a name with the host of a registry, or
// with a digest, is pulled: what Docker Hub has by another name would run beside or in every
// sandbox.
func (a *Access) Own(ctx context.Context, ref string) (id string, err error) {
	if name, err := registries.Parse(ref); registries.IsID(ref) || err == nil && (name.Explicit || name.Digested) {
		return a.engine.EnsureImage(ctx, ref, nil, nil)
	}
	return a.there(ctx, ref)
}

// there returns the id of an image that no registry is asked for.
func (a *Access) there(ctx context.Context, ref string) (id string, err error) {
	found, err := a.engine.FindImage(ctx, ref)
	if errors.Is(err, engine.ErrImage) {
		return "", notLoaded(ref)
	}
	return found.ID, err
}

// pullForAll is a pull by an administrator: whatever credentials it takes, every key may have the
// image.
func (a *Access) pullForAll(ctx context.Context, ref string, auth *engine.RegistryAuth) (id string, err error) {
	if registries.IsID(ref) {
		return a.engine.EnsureImage(ctx, ref, auth, nil)
	}
	name, err := registries.Parse(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
	}
	if name.Own() {
		return a.there(ctx, ref)
	}
	if id, err = a.engine.EnsureImage(ctx, ref, auth, nil); err != nil {
		return "", err
	}
	return id, a.add(ctx, lifecycle.ImageGrant{Repository: name.Repository, Image: id, Key: everyKey})
}

// Loaded makes images that an administrator loaded every key's.
func (a *Access) Loaded(ctx context.Context, images []engine.Image) error {
	var errs []error
	for _, image := range images {
		for _, repository := range repositories(image) {
			if a.contested(storedImage{repository, image.ID}, lifecycle.ImageGrant{}) {
				errs = append(errs, a.add(ctx, lifecycle.ImageGrant{Repository: repository, Image: image.ID, Key: everyKey}))
			}
		}
	}
	return errors.Join(errs...)
}

// notLoaded says how an image is had that no registry is asked for.
func notLoaded(ref string) error {
	return fmt.Errorf("image %s: %w: the engine does not have it, and no registry is asked for a name without the host of a registry that the service itself "+
		"uses, or that begins with sandbox/: load it (`sandbox image load`, local.archives, `docker load`) or build it (`make images`)", ref, engine.ErrImage)
}

// permits reports whether the key may have an image that the engine has. repository is the one that
// it was named by, "" for its id.
func (a *Access) permits(image engine.Image, repository, key string) bool {
	names := []string{repository}
	if repository == "" {
		names = repositories(image)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(names) == 0 { // it has lost its names
		restricted := false
		for stored, keys := range a.known {
			if stored.id == image.ID && (keys[key] || keys[everyKey]) {
				return true
			}
			restricted = restricted || stored.id == image.ID
		}
		return !restricted
	}
	return slices.ContainsFunc(names, func(name string) bool {
		keys, restricted := a.known[storedImage{name, image.ID}]
		if !restricted {
			_, restricted = a.known[storedImage{name, ""}]
		}
		return !restricted || keys[key] || keys[everyKey]
	})
}

// contested reports whether the image came, or may have come, with credentials by another pull than
// the one that is given.
func (a *Access) contested(image storedImage, begun lifecycle.ImageGrant) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, restricted := a.known[image]; restricted {
		return true
	}
	others := a.known[storedImage{image.repository, ""}]
	return len(others) > 1 || len(others) == 1 && (!others[begun.Key] || begun.Repository == "")
}

func repositories(image engine.Image) (list []string) {
	for _, full := range image.Names {
		if name, err := registries.Parse(full); err == nil && !slices.Contains(list, name.Repository) {
			list = append(list, name.Repository)
		}
	}
	return list
}
