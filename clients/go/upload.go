package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"unicode/utf8"

	"sandbox.internal/clients/go/execd"
)

// WriteOptions are who owns a file or directory and who may use it. Nil, and what is empty, means as
// what was there before, or as the daemon makes new ones.
type WriteOptions struct {
	Owner, Group string // a name or a number
	Mode         *int   // octal digits: new(644)
}

// FileContent is a file to write.
type FileContent struct {
	Path    string
	Data    []byte
	Options *WriteOptions
}

// Write writes a file. It appears at its path completely or not at all, with its parents.
func (f Files) Write(ctx context.Context, path string, data []byte, o *WriteOptions) error {
	return f.WriteAll(ctx, FileContent{path, data, o})
}

// WriteText writes a text.
func (f Files) WriteText(ctx context.Context, path, text string, o *WriteOptions) error {
	return f.Write(ctx, path, []byte(text), o)
}

// WriteAll writes several files with one request.
func (f Files) WriteAll(ctx context.Context, files ...FileContent) error {
	return f.upload(ctx, repeatable, func(form *multipart.Writer) error {
		for _, file := range files {
			if err := addFile(form, file.Path, bytes.NewReader(file.Data), file.Options); err != nil {
				return err
			}
		}
		return nil
	})
}

// WriteFrom writes a file of any size from a stream. It is not repeated when the connection is cut;
// nothing is written then.
func (f Files) WriteFrom(ctx context.Context, path string, content io.Reader,
	o *WriteOptions) error {
	return f.upload(ctx, never, func(form *multipart.Writer) error {
		return addFile(form, path, content, o)
	})
}

// Symlink makes a symbolic link at a path, with its parents. The target is kept as it is and need not exist.
// A file or link at the path is replaced; it is not followed.
func (f Files) Symlink(ctx context.Context, target, path string) error {
	return f.upload(ctx, repeatable, func(form *multipart.Writer) error {
		return addPart(form, execd.UploadMetadata{Path: path, RawPath: rawPath(path), Symlink: new(true)},
			strings.NewReader(target))
	})
}

// upload sends a form while fill writes it. With repeatable, fill can be called again.
func (f Files) upload(ctx context.Context, again repetition,
	fill func(*multipart.Writer) error) error {
	return f.box.client.call(ctx, again, nil, func(ctx context.Context) (*http.Response, error) {
		reader, writer := io.Pipe()
		form := multipart.NewWriter(writer)
		go func() {
			err := fill(form)
			if err == nil {
				err = form.Close()
			}
			writer.CloseWithError(err)
		}()
		defer func() { _ = reader.Close() }() // ends fill when the answer came early
		return f.box.daemon.UploadFilesWithBody(ctx, nil, form.FormDataContentType(), reader)
	})
}

// addFile adds the two fields of a file.
func addFile(form *multipart.Writer, path string, content io.Reader, o *WriteOptions) error {
	metadata := execd.UploadMetadata{Path: path, RawPath: rawPath(path)}
	if o != nil {
		metadata.Owner, metadata.Group, metadata.Mode = optional(o.Owner), optional(o.Group), o.Mode
	}
	return addPart(form, metadata, content)
}

// addPart adds them with their metadata.
func addPart(form *multipart.Writer, metadata execd.UploadMetadata, content io.Reader) error {
	text, err := json.Marshal(metadata)
	if err != nil {
		return err
	}
	if err := form.WriteField("metadata", string(text)); err != nil {
		return err
	}
	part, err := form.CreateFormFile("file", "file")
	if err != nil {
		return err
	}
	_, err = io.Copy(part, content)
	return err
}

// rawPath returns the bytes of a path that JSON cannot hold as they are, nil for any other.
func rawPath(path string) *execd.ExactPath {
	if utf8.ValidString(path) {
		return nil
	}
	return new(base64.StdEncoding.EncodeToString([]byte(path)))
}
