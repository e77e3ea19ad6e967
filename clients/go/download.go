package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sandbox.internal/clients/go/execd"
)

// MaxRead is the largest file that Read returns, in bytes. Open has no limit.
const MaxRead = 256 << 20

// Read returns a file of at most MaxRead bytes.
func (f Files) Read(ctx context.Context, path string) ([]byte, error) {
	content, err := f.Open(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	return readBounded(content, MaxRead)
}

// ReadText returns a file of at most MaxRead bytes as text.
func (f Files) ReadText(ctx context.Context, path string) (string, error) {
	data, err := f.Read(ctx, path)
	return string(data), err
}

// ReadOptions are a range of a file. Nil means the whole file.
type ReadOptions struct {
	Offset int64 // of the first byte; a negative one counts from the end
	Length int64 // in bytes; 0 means up to the end
}

// Open returns the bytes of a file as a stream, which is to be closed. It resumes when its
// connection is cut, and fails when the file has changed meanwhile.
func (f Files) Open(ctx context.Context, path string, o *ReadOptions) (io.ReadCloser, error) {
	d := &download{ctx: ctx, box: f.box, path: path, left: -1,
		retry: resumption{what: "download of " + clean(path, 256), limit: f.box.client.resumeLimit}}
	if o != nil {
		d.offset = o.Offset
		if o.Length > 0 {
			d.left = o.Length
		}
		if o.Offset < 0 && o.Length > 0 {
			return nil, errors.New("a range from the end has no length")
		}
	}
	response, err := d.request()
	if err != nil {
		return nil, err
	}
	if err := d.accept(response); err != nil {
		return nil, err
	}
	return d, nil
}

// download is a file on its way here.
type download struct {
	ctx    context.Context
	box    *Sandbox
	path   string
	offset int64 // of the next byte; negative before the first answer says what that means
	left   int64 // how many bytes are wanted; -1 before it is known
	tag    string
	body   io.ReadCloser
	retry  resumption // a byte is progress
}

// request requests what is missing.
func (d *download) request() (*http.Response, error) {
	params := &execd.DownloadFileParams{Path: d.path, Range: d.byteRange()}
	if d.tag != "" {
		params.IfRange = &d.tag
	}
	return d.box.client.send(d.ctx, repeatable, func(ctx context.Context) (*http.Response, error) {
		return d.box.daemon.DownloadFile(ctx, params)
	})
}

// accept takes an answer that has what is missing, and refuses any other.
func (d *download) accept(response *http.Response) error {
	resumed := d.tag != ""
	tag := response.Header.Get("Etag")
	switch {
	case d.byteRange() != nil && response.StatusCode != http.StatusPartialContent,
		resumed && tag != d.tag:
		_ = response.Body.Close()
		return fmt.Errorf("%s: the file has changed while it was read", clean(d.path, 256))
	case response.ContentLength < 0:
		_ = response.Body.Close()
		return errors.New("the answer has no Content-Length")
	case !resumed:
		d.left = response.ContentLength
		var first, last, size int64
		if _, err := fmt.Sscanf(response.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last,
			&size); err == nil {
			d.offset = first
		}
	}
	d.tag, d.body = tag, response.Body
	return nil
}

// reconnect requests what is missing, for as long as that may be tried.
func (d *download) reconnect() error {
	for {
		response, err := d.request()
		switch {
		case err == nil:
			return d.accept(response)
		case d.ctx.Err() != nil:
			return context.Cause(d.ctx)
		case !mayRepeat(err, repeatable):
			return err
		}
		if err := d.retry.waitLong(d.ctx, err); err != nil {
			return err
		}
	}
}

// byteRange is the header for what is missing, nil for the whole file.
func (d *download) byteRange() *string {
	switch {
	case d.offset < 0:
		return new(fmt.Sprintf("bytes=%d", d.offset))
	case d.left > 0:
		return new(fmt.Sprintf("bytes=%d-%d", d.offset, d.offset+d.left-1))
	case d.offset > 0:
		return new(fmt.Sprintf("bytes=%d-", d.offset))
	}
	return nil
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.left == 0 {
			return 0, io.EOF
		}
		n, err := d.body.Read(p[:min(int64(len(p)), d.left)])
		d.offset, d.left = d.offset+int64(n), d.left-int64(n)
		if n > 0 || err == nil {
			d.retry.progressed()
			return n, nil
		}
		if d.ctx.Err() != nil {
			return 0, context.Cause(d.ctx)
		}
		if d.tag == "" {
			return 0, &StreamError{What: d.retry.what, Err: err}
		}
		if err := d.retry.wait(d.ctx, err); err != nil {
			return 0, err
		}
		_ = d.body.Close()
		if err := d.reconnect(); err != nil {
			return 0, err
		}
	}
}

// Close implements io.Closer.
func (d *download) Close() error { return d.body.Close() }
