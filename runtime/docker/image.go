package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/pkg/jsonmessage"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/pull"
	"sandbox.internal/runtime/engine/registries"
)

// EnsureImage implements [engine.Engine].
//
// An image that the engine has is used as it is, without asking its registry and whatever auth
// says. A reference without tag and digest means latest. A pull is shared by callers with the same
// credentials only, so that no caller gets a missing image by the password of another; it goes on
// while one of them still waits.
func (e *Engine) EnsureImage(ctx context.Context, ref string, auth *engine.RegistryAuth,
	progress func(string)) (string, error) {
	if registries.IsID(ref) {
		return e.localImage(ctx, ref)
	}
	// The full name keeps the engine from taking a short name for the beginning of an image's id.
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
	}
	id, err := e.localImage(ctx, name.String())
	if !errors.Is(err, engine.ErrImage) {
		return id, err
	}
	if reserved(name.String()) {
		return "", fmt.Errorf("image %q: %w: snapshots have that name", ref, engine.ErrImage)
	}
	key := pull.Key{Ref: name.String(), Caller: engine.CallerOf(ctx)}
	if auth != nil {
		key.Auth = *auth
	}
	return e.pulls.Do(ctx, key, progress,
		func(ctx context.Context, report func(string)) (string, error) {
			// The image may have come by a pull that ended after the look above.
			if id, err := e.localImage(ctx, name.String()); !errors.Is(err, engine.ErrImage) {
				return id, err
			}
			if err := e.pull(ctx, name, key.Auth, report); err != nil {
				return "", err
			}
			return e.localImage(ctx, name.String())
		})
}

// login checks that the caller may ask the registry of the image, and returns the credentials for
// it as the engine takes them, empty for none.
//
// The engine resolves the name of a registry by itself and follows its redirects, which nothing
// here can keep from internal addresses.
func (e *Engine) login(ctx context.Context, op string, name reference.Named, auth engine.RegistryAuth) (string, error) {
	if engine.CallerOf(ctx).Guest {
		if err := e.registries.Check(ctx, reference.Domain(name)); err != nil {
			return "", describe(op, engine.ErrImage, err)
		}
	}
	if auth == (engine.RegistryAuth{}) {
		return "", nil
	}
	encoded, err := registry.EncodeAuthConfig(registry.AuthConfig{
		Username:      auth.Username,
		Password:      auth.Password,
		ServerAddress: reference.Domain(name),
	})
	if err != nil {
		return "", fmt.Errorf("%s: encode credentials: %w", op, err)
	}
	return encoded, nil
}

// FindImage implements [engine.Engine].
func (e *Engine) FindImage(ctx context.Context, ref string) (engine.Image, error) {
	if !registries.IsID(ref) {
		name, err := reference.ParseDockerRef(ref)
		if err != nil {
			return engine.Image{}, fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
		}
		ref = name.String()
	}
	found, err := e.inspectImage(ctx, ref)
	if err != nil {
		return engine.Image{}, err
	}
	described := engine.Image{ID: found.ID, Bytes: found.Size}
	if found.Config != nil {
		described.Entrypoint, described.Cmd = found.Config.Entrypoint, found.Config.Cmd
	}
	for _, short := range slices.Concat(named(found.RepoTags), found.RepoDigests) {
		if name, err := reference.ParseNormalizedNamed(short); err == nil {
			described.Names = append(described.Names, name.String())
		}
	}
	return described, nil
}

// ProveAccess implements [engine.Engine].
func (e *Engine) ProveAccess(ctx context.Context, ref string, auth *engine.RegistryAuth) error {
	op := "ask for image " + ref
	name, err := reference.ParseDockerRef(ref)
	if err != nil {
		return fmt.Errorf("image %q: %w: %w", ref, engine.ErrImage, err)
	}
	var given engine.RegistryAuth
	if auth != nil {
		given = *auth
	}
	encoded, err := e.login(ctx, op, name, given)
	if err != nil {
		return err
	}
	return e.call(ctx, op, forImage, func(ctx context.Context) error {
		_, err := e.api.DistributionInspect(ctx, name.String(), encoded)
		return err
	})
}

// localImage returns ErrImage when the engine does not have the image.
func (e *Engine) localImage(ctx context.Context, ref string) (string, error) {
	found, err := e.inspectImage(ctx, ref)
	return found.ID, err
}

func (e *Engine) pull(ctx context.Context, name reference.Named, auth engine.RegistryAuth,
	report func(string)) error {
	op := "pull image " + name.String()
	encoded, err := e.login(ctx, op, name, auth)
	if err != nil {
		return err
	}
	options := image.PullOptions{RegistryAuth: encoded}
	caller := engine.CallerOf(ctx).Name
	if err := e.pullTurns.Take(ctx, caller); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer e.pullTurns.Give(caller)
	report("resolving " + reference.FamiliarString(name))
	stream, err := e.api.ImagePull(ctx, name.String(), options)
	if err != nil {
		return explain(op, err, forImage)
	}
	defer func() { _ = stream.Close() }()

	meter := newPullMeter(reference.FamiliarString(name), report)
	for decoder := json.NewDecoder(stream); ; {
		var message jsonmessage.JSONMessage
		switch err := decoder.Decode(&message); {
		case err == io.EOF:
			return nil
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("%s: %w", op, ctx.Err())
		case err != nil:
			return explain(op, err, forImage)
		case message.Error != nil:
			// The registry said no after the engine had already answered 200.
			return describe(op, engine.ErrImage, message.Error)
		}
		meter.note(message)
	}
}
