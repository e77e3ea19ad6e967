package lifecycle

import (
	"context"
	"io"
	"time"
)

// ImageStore lets the images that sandboxes are made of be managed. It is an ability that not every
// backend has. Errors that a client may see are of type *[Error].
type ImageStore interface {
	// Images returns those that the engine has.
	Images(ctx context.Context) ([]Image, error)

	// Pull returns the image with that reference, after a download when the engine does not have
	// it. It returns KindImagePull with the registry's message when the image cannot be had.
	Pull(ctx context.Context, ref string, auth *ImageAuth) (Image, error)

	// Load adds the images of an archive, as docker save writes it or an OCI image layout in a tar
	// file, and returns them. It returns KindInvalid for an archive that breaks a rule.
	Load(ctx context.Context, archive io.Reader) ([]Image, error)

	// Remove takes away a name, or with an id all names of an image. It returns KindNoImage, and
	// KindConflict for an image in use where the engine does not keep it for as long as it is.
	Remove(ctx context.Context, ref string) error

	// Prune removes images that have no name and no sandbox, with all also those that have a name,
	// and returns what became of them. It returns KindUnsupported where the engine's images are not
	// the service's alone.
	Prune(ctx context.Context, all bool) (PrunedImages, error)
}

// PrunedImages is what a removal of images has freed, and what it has left.
type PrunedImages struct {
	FreedBytes int64         // of disk
	Recent     int           // how many images stay only because they were loaded or used a short time ago
	Grace      time.Duration // how long that is
}

// Image is an image that an engine has.
type Image struct {
	ID        string
	Names     []string // may be empty
	Bytes     int64    // of its unpacked layers
	CreatedAt time.Time
	InUse     bool // a sandbox is made of it
}

// ImageGrant says that an API key may have an image that was pulled with credentials. An image of a
// repository without any grant is every key's.
type ImageGrant struct {
	Repository string // with its registry, without tag and digest
	// Image is the image's id. Empty: a pull with credentials has begun, and brings an image that
	// is not known yet.
	Image string
	Key   string // the name of the API key; empty means every key
}
