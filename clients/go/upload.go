package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"sandbox.internal/clients/go/execd"
)

// WriteOptions are who owns a file or directory and who may use it. Nil, and what is empty, means
// as what was there before, or as the daemon makes new ones.
type WriteOptions struct {
	Owner, Group string // a name or a number
	// Mode is one to four octal digits: "644", "0755", or "4755" with a special bit. It is no
	// [io/fs.FileMode], whose special bits are others, and in which 0 and no mode are the same.
	Mode string
}

// permission is what the contract calls the options.
func (o *WriteOptions) permission(path string) (execd.Permission, error) {
	options := deref(o)
	mode, err := octal(options.Mode)
	return execd.Permission{
		Owner: optional(options.Owner), Group: optional(options.Group), Mode: mode, RawPath: rawPath(path),
	}, err
}

// octal returns a mode as the contract has it: its octal digits as a decimal number. It is nil for
// an empty one.
func octal(mode string) (*int, error) {
	if mode == "" {
		return nil, nil
	}
	if len(mode) > 4 || strings.Trim(mode, "01234567") != "" {
		return nil, fmt.Errorf(`mode: must be one to four octal digits such as "644" or "0755", not %q`, mode)
	}
	digits, err := strconv.Atoi(mode)
	return &digits, err
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
	described := make([]execd.UploadMetadata, len(files))
	for i, file := range files {
		var err error
		if described[i], err = describe(file.Path, file.Options); err != nil {
			return err
		}
	}
	return f.upload(ctx, repeatable, func(form *multipart.Writer) error {
		for i, file := range files {
			if err := addFile(form, described[i], bytes.NewReader(file.Data)); err != nil {
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
	described, err := describe(path, o)
	if err != nil {
		return err
	}
	return f.upload(ctx, never, func(form *multipart.Writer) error {
		return addFile(form, described, content)
	})
}

// Symlink makes a symbolic link at a path, with its parents. The target is kept as it is and need
// not exist. A file or link at the path is replaced; it is not followed.
func (f Files) Symlink(ctx context.Context, target, path string) error {
	return f.upload(ctx, repeatable, func(form *multipart.Writer) error {
		return addFile(form, execd.UploadMetadata{Path: path, RawPath: rawPath(path), Symlink: new(true)},
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

// describe returns what the form says about a file.
func describe(path string, o *WriteOptions) (execd.UploadMetadata, error) {
	p, err := o.permission(path)
	return execd.UploadMetadata{
		Path: path, Owner: p.Owner, Group: p.Group, Mode: p.Mode, RawPath: p.RawPath,
	}, err
}

// addFile adds the two fields of a file.
func addFile(form *multipart.Writer, metadata execd.UploadMetadata, content io.Reader) error {
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
