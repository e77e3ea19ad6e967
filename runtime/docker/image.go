package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/pkg/jsonmessage"

	"sandbox.internal/runtime/engine"
	"sandbox.internal/runtime/engine/pull"
)

// imageIDs are accepted besides names: an image without a name can be used, but not pulled.
var imageIDs = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// EnsureImage implements [engine.Engine].
//
// An image that the engine has is used as it is, without asking its registry and whatever auth
// says. A reference without tag and digest means latest. A pull is shared by callers with the same
// credentials only, so that no caller gets a missing image by the password of another; it goes on
// while one of them still waits.
func (e *Engine) EnsureImage(ctx context.Context, ref string, auth *engine.RegistryAuth,
	progress func(string)) (string, error) {
	if imageIDs.MatchString(ref) {
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
	key := pull.Key{Ref: name.String()}
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

// localImage returns ErrImage when the engine does not have the image.
func (e *Engine) localImage(ctx context.Context, ref string) (string, error) {
	var found image.InspectResponse
	err := e.call(ctx, "look for image "+ref,
		meaning{notFound: engine.ErrImage, invalid: engine.ErrImage},
		func(ctx context.Context) (err error) {
			found, err = e.api.ImageInspect(ctx, ref)
			return err
		})
	return found.ID, err
}

func (e *Engine) pull(ctx context.Context, name reference.Named, auth engine.RegistryAuth,
	report func(string)) error {
	op := "pull image " + name.String()
	options := image.PullOptions{}
	if auth != (engine.RegistryAuth{}) {
		encoded, err := registry.EncodeAuthConfig(registry.AuthConfig{
			Username:      auth.Username,
			Password:      auth.Password,
			ServerAddress: reference.Domain(name),
		})
		if err != nil {
			return fmt.Errorf("%s: encode credentials: %w", op, err)
		}
		options.RegistryAuth = encoded
	}
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
