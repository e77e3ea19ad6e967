package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
)

const (
	// mimeTar is the media type of a difference as an archive.
	mimeTar = "application/x-tar"
	// defaultDiff is how many files a list of differences has that does not say it.
	defaultDiff = 1000
)

// GetSnapshotDiff needs a caller who may use the snapshots: names and contents are those of the
// files of their sandboxes.
func (h *handlers) GetSnapshotDiff(
	ctx context.Context, request gen.GetSnapshotDiffRequestObject,
) (gen.GetSnapshotDiffResponseObject, error) {
	id, to, limit := request.SnapshotID, value(request.Params.To), defaultDiff
	if to != "" {
		if _, err := h.authorizedSnapshot(ctx, to, lifecycle.Principal.CanUseSnapshot); err != nil {
			return nil, err
		}
	}
	if _, err := h.authorizedSnapshot(ctx, id, lifecycle.Principal.CanUseSnapshot); err != nil {
		return nil, err
	}
	if serve.Accepts(serve.Request(ctx), mimeTar) {
		archive, err := h.snapshots.ArchiveSnapshotDiff(ctx, id, to)
		return archiveAnswer{archive}, err
	}
	if request.Params.Limit != nil {
		limit = *request.Params.Limit
	}
	diff, err := h.snapshots.DiffSnapshot(ctx, id, to, limit)
	if err != nil {
		return nil, err
	}
	body := gen.SnapshotDiff{Items: make([]gen.FileChange, len(diff.Items)), Truncated: diff.Truncated}
	for i, f := range diff.Items {
		body.Items[i] = gen.FileChange{Path: f.Path, Kind: gen.FileChangeKind(f.Kind), Type: gen.FileChangeType(f.Type), Size: f.Size}
	}
	return gen.GetSnapshotDiff200JSONResponse{Body: body}, nil
}

// archiveAnswer is an archive that is sent while it is written.
type archiveAnswer struct{ archive io.ReadCloser }

// VisitGetSnapshotDiffResponse implements the generated interface. An error before the first bytes
// is the answer; a later one cuts the connection.
func (a archiveAnswer) VisitGetSnapshotDiffResponse(w http.ResponseWriter) error {
	defer func() { _ = a.archive.Close() }()
	first := make([]byte, 32<<10)
	n, err := io.ReadFull(a.archive, first)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	w.Header().Set("Content-Type", mimeTar)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	_, err = io.Copy(respond.BoundedWriter(w, 0), io.MultiReader(bytes.NewReader(first[:n]), a.archive))
	return err
}

// ExportSnapshot needs an administrator: the image is every key's.
func (h *handlers) ExportSnapshot(
	ctx context.Context, request gen.ExportSnapshotRequestObject,
) (gen.ExportSnapshotResponseObject, error) {
	if err := caller(ctx).CanAdminister(); err != nil {
		return nil, err
	}
	if _, err := h.authorizedSnapshot(ctx, request.SnapshotID, lifecycle.Principal.CanUseSnapshot); err != nil {
		return nil, err
	}
	serve.LogField(ctx, "image", request.Body.Name)
	image, err := h.snapshots.ExportSnapshot(ctx, request.SnapshotID, request.Body.Name)
	if err != nil {
		return nil, err
	}
	return gen.ExportSnapshot200JSONResponse{Body: toStoredImage(image)}, nil
}
