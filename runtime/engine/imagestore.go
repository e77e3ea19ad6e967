package engine

import (
	"context"
	"errors"
	"io"
	"time"
)

// ErrImageInUse: a container is made of the image.
var ErrImageInUse = errors.New("image in use")

// ImageStore is what an [Engine] implements that lets its images be managed. Errors are as of an
// Engine.
type ImageStore interface {
	// ListImages returns the images that the engine has.
	ListImages(ctx context.Context) ([]Image, error)

	// LoadImages adds the images of an archive, as docker save writes it or an OCI image layout in
	// a tar file, compressed with gzip or not, and returns them. It reads the archive once, to its
	// end, and returns [ErrImage] for one that breaks a rule: no name has changed then, but an
	// engine that loads image by image may have changed names of earlier images. An error of
	// reading the archive is wrapped as it is, and a full disk of the engine's host is not
	// ErrImage.
	LoadImages(ctx context.Context, archive io.Reader) ([]Image, error)

	// RemoveImage takes a name away from its image, and with its last name the image; an ID takes
	// all names. Layers that no container needs any more are removed immediately or by PruneImages.
	// It returns [ErrNotFound] when there is no such image, and may return [ErrImageInUse].
	RemoveImage(ctx context.Context, ref string) error

	// PruneImages removes what no container and no name needs, with all what no container needs. It
	// returns an error that wraps [errors.ErrUnsupported] where the images are not the service's
	// alone.
	PruneImages(ctx context.Context, all bool) (Pruned, error)
}

// Image is an image that an engine has.
type Image struct {
	ID      string    // digest of its configuration, sha256:...
	Names   []string  // references with registry, repository and tag, or as the engine shortens them; may be empty
	Bytes   int64     // of its unpacked layers; images may share some
	Created time.Time // when it came to the engine, or was built, whichever the engine has
	InUse   bool      // a container is made of it
	// Entrypoint and Cmd are what a container runs that has no entrypoint of its own, one after the
	// other. Only FindImage looks them up.
	Entrypoint, Cmd []string
}

// Pruned is what a removal of images has freed, and what it has left.
type Pruned struct {
	Bytes  int64         // of disk that are free now
	Recent int           // how many images stay only because they were loaded or used a short time ago
	Grace  time.Duration // how long that is
}
