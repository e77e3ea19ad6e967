package sandbox

import (
	"context"
	"io"
	"net/http"

	"sandbox.internal/clients/go/lifecycle"
)

// SnapshotDiffOptions say what a snapshot is compared with. Nil means its image.
type SnapshotDiffOptions struct {
	// To is the id of the snapshot to compare with: what has changed from the one to the other.
	// Empty means that the snapshot is compared with its image.
	To string
	// Limit is how many files the list has at most, up to 10 000; 0 means 1000.
	Limit int
}

// DiffSnapshot returns the files in which a snapshot differs, in the order of a walk.
func (c *Client) DiffSnapshot(ctx context.Context, id string, o *SnapshotDiffOptions) (SnapshotDiff, error) {
	options := deref(o)
	params := &lifecycle.GetSnapshotDiffParams{To: optional(options.To), Limit: optional(options.Limit)}
	var diff SnapshotDiff
	err := c.call(ctx, repeatable, &diff, func(ctx context.Context) (*http.Response, error) {
		return c.service.GetSnapshotDiff(ctx, id, params)
	})
	return diff, err
}

// ArchiveSnapshot returns the whole difference that DiffSnapshot is about, as a tar archive that is
// the layer of an OCI image: removed files are whiteouts. The caller closes it. The limit of the
// options does not count.
func (c *Client) ArchiveSnapshot(ctx context.Context, id string, o *SnapshotDiffOptions) (io.ReadCloser, error) {
	params := &lifecycle.GetSnapshotDiffParams{To: optional(deref(o).To)}
	response, err := c.send(ctx, repeatable, func(ctx context.Context) (*http.Response, error) {
		return c.service.GetSnapshotDiff(ctx, id, params, func(_ context.Context, r *http.Request) error {
			r.Header.Set("Accept", "application/x-tar")
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// ExportSnapshot makes an image of a snapshot, in the store of the service's engine, under a name
// with a tag. It needs a key with the role admin.
func (c *Client) ExportSnapshot(ctx context.Context, id, name string) (StoredImage, error) {
	var image StoredImage
	err := c.call(ctx, repeatable, &image, func(ctx context.Context) (*http.Response, error) {
		return c.service.ExportSnapshot(ctx, id, lifecycle.ExportSnapshotRequest{Name: name})
	})
	return image, err
}

// Lineage returns the snapshots and sandboxes that the sandbox is related to, as far as the key may
// read them.
func (s *Sandbox) Lineage(ctx context.Context) (Lineage, error) {
	var lineage Lineage
	err := s.client.call(ctx, repeatable, &lineage, func(ctx context.Context) (*http.Response, error) {
		return s.client.service.GetLineage(ctx, s.id)
	})
	return lineage, err
}
