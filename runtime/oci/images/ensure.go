package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"sandbox.internal/internal/failpoint"
	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/pull"
	"sandbox.internal/runtime/engine/registries"
)

// Ensure returns the id of the image named ref and pulls it first when it is not here, as
// [engine.Images].EnsureImage asks for.
//
// An image that is here is used as it is, without asking its registry and whatever auth says. A
// reference without tag and digest means latest. A pull is shared by callers with the same
// credentials only, so that no caller gets a missing image by the password of another; it goes on
// while one of them still waits. Without auth the credentials are those of the user's Docker
// configuration.
func (s *Store) Ensure(ctx context.Context, ref string, auth *engine.RegistryAuth, progress func(string)) (id string, err error) {
	if registries.IsID(ref) {
		if !s.use(ref) {
			return "", noSuchImage(ref)
		}
		return ref, nil
	}
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
	}
	if id, ok := s.useName(name.String()); ok {
		return id, nil
	}
	if s.ctx.Err() != nil {
		return "", fmt.Errorf("pull image %s: %w: the store is closed", name, engine.ErrUnavailable)
	}
	key := pull.Key{Ref: name.String(), Caller: engine.CallerOf(ctx)}
	if auth != nil {
		key.Auth = *auth
	}
	return s.pulls.Do(ctx, key, progress, func(ctx context.Context, report func(string)) (string, error) {
		// The image may have come by a pull that ended after the look above.
		if id, ok := s.useName(name.String()); ok {
			return id, nil
		}
		report("resolving " + reference.FamiliarString(name))
		id, err := s.pull(ctx, name, key.Auth, report)
		return id, describeError(ctx, "pull image "+name.String(), err)
	})
}

// Find returns the image with the name or id, and notes that it is wanted. It returns
// [engine.ErrImage] when it is not here.
func (s *Store) Find(ref string) (Image, error) {
	id := ref
	if !registries.IsID(ref) {
		name, err := reference.ParseDockerRef(ref)
		if err != nil {
			return Image{}, fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
		}
		id, _ = s.useName(name.String())
	}
	if !s.use(id) {
		return Image{}, noSuchImage(ref)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.images[id]
	if !ok {
		return Image{}, noSuchImage(ref)
	}
	return s.describe(i), nil
}

// Prove asks the registry of the image for its manifest, with the credentials, and returns
// [engine.ErrImage] when it does not let the caller have it. Mirrors are not asked: they have the
// credentials of the service.
func (s *Store) Prove(ctx context.Context, ref string, auth *engine.RegistryAuth) error {
	op := "ask for image " + ref
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
	}
	refs, err := s.endpoints(name)
	if err != nil {
		return describeError(ctx, op, err)
	}
	var login engine.RegistryAuth
	if auth != nil {
		login = *auth
	}
	return describeError(ctx, op, s.prove(ctx, refs[len(refs)-1], login))
}

func (s *Store) prove(ctx context.Context, ref name.Reference, auth engine.RegistryAuth) error {
	turn, err := s.asks.take(ctx, ref.Context().RegistryStr())
	if err != nil {
		return err
	}
	defer turn.release()
	limited, cancel := context.WithTimeout(ctx, s.pace.answers)
	defer cancel()
	from, err := s.connect(limited, ref, auth, false)
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(limited), remote.WithTransport(from.client.Transport)}
	_, err = remote.Head(ref, options...)
	var answer *transport.Error
	if err != nil && (!errors.As(err, &answer) || !slices.Contains(refusals, answer.StatusCode)) {
		_, err = remote.Get(ref, options...) // not every registry answers a HEAD as it should
	}
	return err
}

// refusals are answers of registries that are the same for a GET.
var refusals = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}

// use notes that the image is wanted; false when it is not here.
func (s *Store) use(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.images[id]
	if ok {
		i.used = time.Now()
	}
	return ok
}

func (s *Store) useName(name string) (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.names[name]
	if !ok {
		return "", false
	}
	s.images[n.Image].used = time.Now()
	return n.Image, true
}

// wanted is an image with the names that it gets.
type wanted struct {
	parts *parts
	names []string
}

// add makes images of complete layers, which the caller has pinned, and then gives them their
// names.
func (s *Store) add(ctx context.Context, list []wanted, loaded bool) ([]Image, error) {
	reserved := s.missingBytes(list)
	if reserved > 0 {
		if err := s.reserve(ctx, reserved); err != nil {
			return nil, err
		}
	}
	patches := map[string]int64{} // bytes
	for _, w := range list {
		bytes, err := s.makePatch(ctx, w.parts.id, newImage(w.parts.id, w.parts.config, time.Time{}).layers, s.reserve)
		if err != nil {
			s.giveBack(reserved)
			return nil, err
		}
		if bytes > 0 {
			patches[w.parts.id] = bytes
			reserved += bytes
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.bytes -= reserved }() // each image counts itself
	defer s.syncSoon()
	failpoint.Hit(LayeredFailpoint)
	for _, w := range list {
		if err := s.addImage(w.parts); err != nil {
			return nil, err
		}
		if i := s.images[w.parts.id]; !i.patched && patches[i.id] > 0 {
			s.count(i, patches[i.id])
		}
	}
	failpoint.Hit(RecordedFailpoint)
	for _, w := range list {
		for _, name := range w.names {
			if err := s.addName(named{Name: name, Image: w.parts.id, Loaded: loaded}); err != nil {
				return nil, err
			}
		}
	}
	described := make([]Image, len(list))
	for at, w := range list {
		described[at] = s.describe(s.images[w.parts.id])
	}
	return described, nil
}

// missingBytes is what the images of the list that are not here are going to count for.
func (s *Store) missingBytes(list []wanted) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range list {
		if s.images[w.parts.id] == nil {
			n += recordBytes(w.parts.rawConfig)
		}
	}
	return n
}

// addImage needs s.mu.
func (s *Store) addImage(parts *parts) error {
	i, ok := s.images[parts.id]
	if !ok {
		if err := s.writeFile(s.image(parts.id), parts.rawConfig); err != nil {
			return err
		}
		info, err := os.Stat(s.image(parts.id))
		if err != nil {
			return err
		}
		i = newImage(parts.id, parts.config, info.ModTime())
		i.bytes = recordBytes(parts.rawConfig)
		s.images[i.id] = i
		s.bytes += i.bytes
	}
	i.used = time.Now()
	return nil
}

// addName needs s.mu.
func (s *Store) addName(n named) error {
	if before, ok := s.names[n.Name]; ok && before.Image != n.Image && s.images[before.Image] != nil {
		s.images[before.Image].used = time.Now() // it loses its name: its time of grace begins
	}
	if err := s.writeJSON(s.name(n.Name), n); err != nil {
		return err
	}
	s.names[n.Name] = n
	return nil
}

// Remove takes a name away, or all names of the image with this id. The content goes with
// [Store.Prune]. It returns [engine.ErrImage] when there is no such name or image, and
// [engine.ErrImageInUse] for a name of [Options].Keep; then it removes nothing.
func (s *Store) Remove(refOrID string) error {
	var remove func(named) bool
	if registries.IsID(refOrID) {
		if !s.use(refOrID) {
			return noSuchImage(refOrID)
		}
		remove = func(n named) bool { return n.Image == refOrID }
	} else {
		name, err := reference.ParseDockerRef(refOrID)
		if err != nil {
			return fmt.Errorf("image %q: %w: %w", refOrID, engine.ErrImage, err)
		}
		if _, ok := s.useName(name.String()); !ok {
			return noSuchImage(refOrID)
		}
		remove = func(n named) bool { return n.Name == name.String() }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.names {
		if remove(n) && (s.keep[name] || s.keep[n.Image]) {
			return fmt.Errorf("%w: the service needs %s for every sandbox", engine.ErrImageInUse, name)
		}
	}
	for name, n := range s.names {
		if !remove(n) {
			continue
		}
		if err := os.Remove(s.name(name)); err != nil {
			return err
		}
		delete(s.names, name)
	}
	return nil
}
