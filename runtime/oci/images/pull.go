package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"sandbox.internal/runtime/engine"
)

// pull gets the image from the first endpoint that has it. The error is that of the registry
// itself.
func (s *Store) pull(ctx context.Context, named reference.Named, auth engine.RegistryAuth, report func(string)) (id string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	refs, err := s.endpoints(named)
	if err != nil {
		return "", err
	}
	meter := newMeter("pulling "+reference.FamiliarString(named), report)
	for position, ref := range refs {
		credentials, mirror := auth, position < len(refs)-1
		if mirror {
			credentials = engine.RegistryAuth{}
		}
		var image Image
		if image, err = s.pullFrom(ctx, ref, credentials, mirror, named.String(), meter); err == nil {
			return image.ID, nil
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if mirror {
			s.log.Info().Str("image", named.String()).Str("mirror", ref.Context().RegistryStr()).Str("error", oneLine(err.Error())).
				Msg("a mirror does not provide an image")
		}
	}
	return "", err
}

func (s *Store) pullFrom(ctx context.Context, ref name.Reference, auth engine.RegistryAuth, mirror bool, imageName string, meter *meter) (Image, error) {
	p, err := s.resolve(ctx, ref, auth, mirror)
	if err != nil {
		return Image{}, err
	}
	release, err := s.obtainAll(ctx, p, meter)
	if err != nil {
		return Image{}, err
	}
	defer release()
	added, err := s.add(ctx, []wanted{{parts: p, names: []string{imageName}}}, false)
	if err != nil {
		return Image{}, err
	}
	return added[0], nil
}

// resolve logs in and asks what the image is made of. A registry that takes too long fails this,
// and does not end ctx.
func (s *Store) resolve(ctx context.Context, ref name.Reference, auth engine.RegistryAuth, mirror bool) (*parts, error) {
	turn, err := s.asks.take(ctx, ref.Context().RegistryStr()) // given back before layers wait for theirs
	if err != nil {
		return nil, err
	}
	defer turn.release()
	limited, cancel := context.WithTimeout(ctx, s.pace.answers)
	defer cancel()
	p, err := s.resolveWithin(limited, ref, auth, mirror)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: %s did not send the image's manifest and configuration within %s", errSlow, ref.Context().RegistryStr(), s.pace.answers)
	}
	return p, err
}

func (s *Store) resolveWithin(ctx context.Context, ref name.Reference, auth engine.RegistryAuth, mirror bool) (*parts, error) {
	from, err := s.connect(ctx, ref, auth, mirror)
	if err != nil {
		return nil, err
	}
	return from.parts(ctx)
}

// parts asks for the manifest and configuration of the image for this machine.
func (e *endpoint) parts(ctx context.Context) (*parts, error) {
	return e.partsOf(ctx, e.ref, 0)
}

// partsOf does that for a manifest, or an index with one.
func (e *endpoint) partsOf(ctx context.Context, ref name.Reference, depth int) (*parts, error) {
	found, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(e.client.Transport))
	if err != nil {
		return nil, err
	}
	if found.MediaType.IsIndex() {
		if depth >= maxIndexDepth {
			return nil, fmt.Errorf("%w: more than %d indexes lie in one another", errNoImage, maxIndexDepth)
		}
		index, err := v1.ParseIndexManifest(bytes.NewReader(found.Manifest))
		if err != nil {
			return nil, fmt.Errorf("index %s is broken: %w", found.Digest, err)
		}
		return firstImage(index.Manifests, func(d v1.Descriptor) (*parts, error) {
			return e.partsOf(ctx, e.ref.Context().Digest(d.Digest.String()), depth+1)
		})
	}
	if depth > 0 {
		var manifest struct {
			ArtifactType string        `json:"artifactType"`
			Config       v1.Descriptor `json:"config"`
		}
		if err := json.Unmarshal(found.Manifest, &manifest); err != nil {
			return nil, fmt.Errorf("manifest %s is broken: %w", found.Digest, err)
		}
		if err := checkImage(manifest.ArtifactType, manifest.Config.MediaType); err != nil {
			return nil, err
		}
	}
	image, err := found.Image()
	if err != nil {
		return nil, err
	}
	return e.imageParts(image)
}

func (e *endpoint) imageParts(found v1.Image) (*parts, error) {
	manifest, err := found.Manifest()
	if err != nil {
		return nil, err
	}
	if err := checkLayers(len(manifest.Layers)); err != nil {
		return nil, err
	}
	if size := manifest.Config.Size; size < 0 || size > maxConfig { // the library reads without a bound when it is -1
		return nil, fmt.Errorf("the size of the image's configuration is %d, not within 0 and %d bytes", size, maxConfig)
	}
	if manifest.Config.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("digest %s of the image's configuration is not a SHA-256", manifest.Config.Digest)
	}
	raw, err := found.RawConfigFile()
	if err != nil {
		return nil, err
	}
	var blobs []blob
	for _, layer := range manifest.Layers {
		if layer.Size < 0 || layer.Digest.Algorithm != "sha256" {
			return nil, errors.New("the manifest has a layer without size or SHA-256")
		}
		digest, size := layer.Digest, layer.Size // the rest of the manifest is not kept
		blobs = append(blobs, blob{digest: digest, size: size, host: e.ref.Context().RegistryStr(), open: func(ctx context.Context, yield func() bool) (io.ReadCloser, error) {
			return e.openBlob(ctx, yield, digest.String(), size), nil
		}})
	}
	return newParts(raw, blobs)
}
