package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"sandbox.internal/execd/activity"
	"sandbox.internal/execd/files"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
)

// maxUploadMetadata bounds a metadata part, in bytes.
const maxUploadMetadata = 64 << 10

func (h *handlers) UploadFiles(ctx context.Context, request gen.UploadFilesRequestObject) (gen.UploadFilesResponseObject, error) {
	form, err := formOf(serve.Request(ctx))
	if err != nil {
		return nil, err
	}
	upload := upload{handlers: h, ctx: ctx, body: form, digest: value(request.Params.ReprDigest)}
	var digests []string
	for {
		meta, err := upload.metadata(len(digests))
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		digest, err := upload.file(meta)
		if err != nil {
			return nil, err
		}
		digests = append(digests, digest)
	}
	if len(digests) == 0 {
		return nil, serve.Invalid("body: must have a metadata part followed by a file part")
	}
	response := gen.UploadFiles200JSONResponse{}
	if len(digests) == 1 {
		response.Headers.ReprDigest = &digests[0]
	}
	return response, nil
}

// upload reads the pairs of a multipart body, metadata and then file, in the order in which they
// come.
type upload struct {
	handlers *handlers
	ctx      context.Context
	body     *multipart.Reader
	digest   string // of the request's only file, if the client sent one
}

// metadata reads the next metadata part. It returns io.EOF when there is none.
func (u *upload) metadata(done int) (files.UploadMeta, error) {
	part, err := u.next()
	if err != nil {
		return files.UploadMeta{}, err
	}
	if done > 0 && u.digest != "" {
		return files.UploadMeta{}, serve.Invalid("header Repr-Digest: fits one file; send it in each file part when there are several")
	}
	if name := part.FormName(); name != "metadata" {
		return files.UploadMeta{}, serve.Invalid("body: part %q came where a metadata part must come; the order is metadata, file, metadata, file", name)
	}
	text, err := io.ReadAll(io.LimitReader(part, maxUploadMetadata+1))
	if err != nil {
		return files.UploadMeta{}, broken(err)
	}
	if len(text) > maxUploadMetadata {
		return files.UploadMeta{}, &serve.Problem{Status: http.StatusRequestEntityTooLarge, Code: "REQUEST_TOO_LARGE", Message: "body/metadata: must be at most 64 KiB"}
	}
	meta, err := parseMetadata(text)
	meta.Digest = u.digest
	return meta, err
}

// file reads the file part that belongs to the metadata, and returns its digest once it is in
// place.
func (u *upload) file(meta files.UploadMeta) (digest string, err error) {
	record := u.handlers.begin(u.ctx, activity.Upload, meta.Path)
	defer func() { finish(record, err) }()
	part, err := u.next()
	if err == io.EOF {
		return "", serve.Invalid("body: the file part for %q is missing", meta.Path)
	}
	if err != nil {
		return "", err
	}
	if name := part.FormName(); name != "file" {
		return "", serve.Invalid("body: part %q came where the file part for %q must come", name, meta.Path)
	}
	if digest := part.Header.Get("Repr-Digest"); digest != "" {
		meta.Digest = digest
	}
	if meta.Symlink {
		target, err := io.ReadAll(io.LimitReader(content{part}, files.MaxLinkTarget+1))
		if err != nil {
			return "", err
		}
		uploaded, err := u.handlers.files.Symlink(meta, target)
		return uploaded.Digest, err
	}
	target, err := u.handlers.files.Begin(meta)
	if err != nil {
		return "", err
	}
	defer target.Abort()
	if _, err := io.Copy(target, content{part}); err != nil {
		return "", err
	}
	uploaded, err := target.Commit()
	return uploaded.Digest, err
}

// next returns the next part, and io.EOF itself after the last boundary. An error that wraps io.EOF
// is that of a form which was cut.
func (u *upload) next() (*multipart.Part, error) {
	part, err := u.body.NextPart()
	if err != nil && err != io.EOF {
		return nil, broken(err)
	}
	return part, err
}

// formOf reads the form of a request of which nothing has been read. NextPart of the request's own
// reader returns io.EOF also for a form that is cut in the header of a part.
func formOf(r *http.Request) (*multipart.Reader, error) {
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, serve.Invalid("header Content-Type: %v", err)
	}
	// The last boundary may be without its end of line, which NextPart knows by io.EOF alone.
	body := io.MultiReader(r.Body, strings.NewReader("\r\n"), cut{})
	return multipart.NewReader(body, params["boundary"]), nil
}

// cut is the end of what has no end of its own.
type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// content is what a part holds. Its errors are the client's, so that they differ from those of the
// disk that io.Copy writes to.
type content struct{ part *multipart.Part }

func (c content) Read(p []byte) (int, error) {
	n, err := c.part.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = broken(err)
	}
	return n, err
}

func broken(err error) error {
	return serve.Invalid("body: is not a complete multipart/form-data message of metadata and file parts: %v", err)
}
