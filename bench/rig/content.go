package rig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"os"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/pattern"
)

// Content is the file that is moved: a random MiB, over and over, so that nothing on the way can
// make it smaller.
type Content struct {
	pattern []byte
	Size    int64
	digest  string // as the value of Repr-Digest
}

// NewContent returns a content of size bytes.
func NewContent(size int64) Content {
	c := Content{pattern: make([]byte, 1<<20), Size: size}
	rand.NewChaCha8([32]byte{}).Read(c.pattern)
	sum := sha256.New()
	io.Copy(sum, c.reader()) // neither side can fail
	c.digest = "sha-256=:" + base64.StdEncoding.EncodeToString(sum.Sum(nil)) + ":"
	return c
}

// reader reads the content without holding all of it.
func (c Content) reader() io.Reader {
	blocks := make([]io.Reader, c.Size/int64(len(c.pattern)))
	for i := range blocks {
		blocks[i] = bytes.NewReader(c.pattern)
	}
	return io.MultiReader(blocks...)
}

// form is the content as a multipart body for path, and its content type and length.
func (c Content) form(path string) (body io.Reader, contentType string, length int64, err error) {
	metadata, err := json.Marshal(map[string]any{"path": path, "mode": 644})
	if err != nil {
		return nil, "", 0, err
	}
	var frame bytes.Buffer
	form := multipart.NewWriter(&frame)
	err = form.WriteField("metadata", string(metadata))
	if err == nil {
		_, err = form.CreateFormFile("file", "content")
	}
	head := frame.Len()
	err = errors.Join(err, form.Close())
	parts := frame.Bytes()
	body = io.MultiReader(bytes.NewReader(parts[:head]), c.reader(), bytes.NewReader(parts[head:]))
	return body, form.FormDataContentType(), int64(len(parts)) + c.Size, err
}

// upload sends the content as a form and returns the response.
func (c Content) upload(ctx context.Context, client *http.Client, address string,
	headers http.Header, path string) (*http.Response, error) {
	body, contentType, length, err := c.form(path)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, body)
	if err != nil {
		return nil, err
	}
	request.Header = headers.Clone()
	request.Header.Set("Content-Type", contentType)
	request.ContentLength = length
	return Send(client, request, http.StatusOK)
}

// UploadTo sends the content to a daemon, which answers with the digest of what it wrote.
func (c Content) UploadTo(ctx context.Context, daemon Execd, path string) error {
	response, err := c.upload(ctx, daemon.client, daemon.url+"/files/upload", daemon.headers, path)
	if err != nil {
		return err
	}
	if got := response.Header.Get("Repr-Digest"); got != c.digest {
		err = fmt.Errorf("%w: the upload's digest is %q instead of %q", measure.ErrLost, got, c.digest)
	}
	return errors.Join(err, Drain(response))
}

// UploadToFloor sends the same bytes as a raw body.
func (c Content) UploadToFloor(ctx context.Context, floor *Process) error {
	return floor.put(ctx, "/upload", c.reader(), c.Size)
}

// Save writes the content to a file.
func (c Content) Save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, c.reader())
	return errors.Join(err, file.Sync(), file.Close())
}

// Compare reads a download to its end and compares every byte.
func (c Content) Compare(response *http.Response, buffer []byte) error {
	defer response.Body.Close()
	expected := &pattern.Checker{Bytes: c.pattern, Size: c.Size}
	for {
		n, err := response.Body.Read(buffer)
		if err := expected.Take(buffer[:n]); err != nil {
			return measure.Lost(err)
		}
		if errors.Is(err, io.EOF) {
			return measure.Lost(expected.End())
		}
		if err != nil {
			return err
		}
	}
}
