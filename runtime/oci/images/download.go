package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// How a download that is cut goes on.
const (
	downloadTries    = 5                      // in a row, without progressBytes between them
	progressBytes    = 1 << 20                //
	downloadPause    = 200 * time.Millisecond // before the second try; it doubles
	downloadPatience = 60 * time.Second       // without a byte
)

var errStalled = fmt.Errorf("the registry sent nothing for %s", downloadPatience)

// download reads a blob, and asks for the rest of it when the connection is cut.
type download struct {
	ctx    context.Context
	cancel context.CancelFunc
	client *http.Client
	url    string
	size   int64

	offset int64         // of the next byte
	body   io.ReadCloser // nil: to be asked for
	asking context.Context
	stop   context.CancelCauseFunc
	idle   *time.Timer
	failed int   // tries in a row
	since  int64 // offset at the first of them
}

// openBlob returns a reader of the blob's size bytes. Whether they are the right ones is for the caller to check.
func (e *endpoint) openBlob(ctx context.Context, digest string, size int64) io.ReadCloser {
	repository := e.ref.Context()
	ctx, cancel := context.WithCancel(ctx)
	return &download{ctx: ctx, cancel: cancel, client: e.client, size: size,
		url: fmt.Sprintf("%s://%s/v2/%s/blobs/%s", repository.Scheme(), repository.RegistryStr(), repository.RepositoryStr(), digest)}
}

func (d *download) Read(p []byte) (int, error) {
	for {
		if d.offset >= d.size {
			d.closeBody()
			return 0, io.EOF
		}
		n, err := d.readOnce(p)
		if n > 0 {
			return n, nil
		}
		if err == nil {
			continue
		}
		if cause := context.Cause(d.asking); cause != nil {
			err = cause // in place of "context canceled"
		}
		d.closeBody()
		if err := d.retry(err); err != nil {
			return 0, err
		}
	}
}

// readOnce reads from the connection. An error comes without bytes.
func (d *download) readOnce(p []byte) (int, error) {
	if d.body == nil {
		if err := d.connect(); err != nil {
			return 0, err
		}
	}
	n, err := d.body.Read(p[:min(int64(len(p)), d.size-d.offset)])
	d.offset += int64(n)
	if n > 0 {
		return n, nil // an error comes again
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}

func (d *download) connect() error {
	asking, stop := context.WithCancelCause(d.ctx)
	d.asking, d.stop = asking, stop
	d.idle = time.AfterFunc(downloadPatience, func() { stop(errStalled) })
	request, err := http.NewRequestWithContext(asking, http.MethodGet, d.url, nil)
	if err != nil {
		return err
	}
	if d.offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.offset, d.size-1))
	}
	response, err := d.client.Do(request)
	if err != nil {
		return err
	}
	d.body = &patientBody{ReadCloser: response.Body, idle: d.idle}
	if err := transport.CheckError(response, http.StatusOK, http.StatusPartialContent); err != nil {
		return err
	}
	if response.StatusCode == http.StatusPartialContent {
		if want := fmt.Sprintf("bytes %d-", d.offset); !strings.HasPrefix(response.Header.Get("Content-Range"), want) {
			return fmt.Errorf("asked for %q, the registry answers with %q", request.Header.Get("Range"), response.Header.Get("Content-Range"))
		}
		return nil
	}
	// A registry without support for ranges begins again.
	_, err = io.CopyN(io.Discard, d.body, d.offset)
	return err
}

// patientBody has idle run while it waits for bytes, and not between two reads, when the disk may be what takes long.
type patientBody struct {
	io.ReadCloser
	idle *time.Timer
}

func (b *patientBody) Read(p []byte) (int, error) {
	b.idle.Reset(downloadPatience)
	defer b.idle.Stop()
	return b.ReadCloser.Read(p)
}

// retry waits before the next try, or returns why there is none.
func (d *download) retry(err error) error {
	if d.ctx.Err() != nil {
		return d.ctx.Err()
	}
	var answer *transport.Error
	if errors.As(err, &answer) && !answer.Temporary() {
		return err
	}
	if d.failed == 0 || d.offset-d.since >= progressBytes {
		d.failed, d.since = 0, d.offset
	}
	if d.failed++; d.failed >= downloadTries {
		return fmt.Errorf("download cut after %d of %d bytes: %w", d.offset, d.size, err)
	}
	select {
	case <-time.After(downloadPause << (d.failed - 1)):
		return nil
	case <-d.ctx.Done():
		return d.ctx.Err()
	}
}

func (d *download) closeBody() {
	if d.idle != nil {
		d.idle.Stop()
	}
	if d.stop != nil {
		d.stop(nil)
	}
	if d.body != nil {
		_ = d.body.Close()
		d.body = nil
	}
}

// Close ends a Read that is under way; it may be called while another goroutine reads.
func (d *download) Close() error {
	d.cancel()
	return nil
}
