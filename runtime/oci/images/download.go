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
	downloadTries = 5                      // in a row, without progressBytes between them
	progressBytes = 1 << 20                //
	downloadPause = 200 * time.Millisecond // before the second try; it doubles
)

// pace is how slow a registry may be. A download holds one of few turns, which a registry must not
// hold for as long as it likes.
type pace struct {
	answers time.Duration // to log in, and for the manifest and configuration of an image; then the next endpoint is asked
	silence time.Duration // without a byte; then the rest is asked for again
	window  time.Duration // of waiting for the registry, in which it sends at least bytes; else the download fails
	bytes   int64
	grace   time.Duration // of waiting for the registry; after it the download fails when it is below speed and others wait for its turn
	speed   int64         // bytes per second on average, and as much more with each speedStep received
}

var defaultPace = pace{answers: 2 * time.Minute, silence: time.Minute, window: 5 * time.Minute, bytes: 1 << 20, grace: time.Minute, speed: 100 << 10}

// speedStep bounds how long a layer of any size may keep its turn from others: three hours, which
// is speedStep at the default speed.
const speedStep = 1 << 30

// yields reports whether a download that received so many bytes while it waited for the registry
// leaves its turn to others that want it.
func (p pace) yields(received int64, waited time.Duration) bool {
	least := float64(p.speed) * (1 + float64(received)/speedStep)
	return waited > p.grace && float64(received) < least*waited.Seconds()
}

var errSlow = errors.New("the registry is too slow")

// download reads a blob, and asks for the rest of it when the connection is cut.
type download struct {
	ctx    context.Context
	cancel context.CancelFunc
	client *http.Client
	url    string
	size   int64
	pace   pace
	yield  func() bool // hands the turn to another that waits for one; false when none does

	offset int64         // of the next byte
	body   io.ReadCloser // nil: to be asked for
	asking context.Context
	stop   context.CancelCauseFunc
	idle   *time.Timer
	failed int   // tries in a row
	since  int64 // offset at the first of them

	waited  time.Duration // for the registry, in this window of the pace
	arrived int64         // bytes in it
	before  time.Duration // that it waited in earlier windows
}

// openBlob returns a reader of the blob's size bytes. Whether they are the right ones is for the
// caller to check.
func (e *endpoint) openBlob(ctx context.Context, yield func() bool, digest string, size int64) io.ReadCloser {
	repository := e.ref.Context()
	path := fmt.Sprintf("/v2/%s/blobs/%s", repository.RepositoryStr(), digest)
	ctx, cancel := context.WithCancel(withLayer(ctx, path))
	return &download{ctx: ctx, cancel: cancel, client: e.client, size: size, pace: e.pace, yield: yield,
		url: fmt.Sprintf("%s://%s%s", repository.Scheme(), repository.RegistryStr(), path)}
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
	d.idle = time.AfterFunc(d.pace.silence, func() { stop(fmt.Errorf("the registry sent nothing for %s", d.pace.silence)) })
	request, err := http.NewRequestWithContext(asking, http.MethodGet, d.url, nil)
	if err != nil {
		return err
	}
	if d.offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.offset, d.size-1))
	}
	began := time.Now()
	response, err := d.client.Do(request)
	d.waited += time.Since(began)
	if err != nil {
		return err
	}
	d.body = &pacedBody{ReadCloser: response.Body, download: d}
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

// pacedBody measures the time in which it waits for bytes, and not that between two reads, when the
// disk may be what takes long.
type pacedBody struct {
	io.ReadCloser
	download *download
}

func (b *pacedBody) Read(p []byte) (int, error) {
	d := b.download
	d.idle.Reset(d.pace.silence)
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	d.idle.Stop()
	d.waited += time.Since(began)
	d.arrived += int64(n)
	if total := d.before + d.waited; d.pace.yields(d.offset+int64(n), total) && d.yield() {
		return 0, fmt.Errorf("%w: it sent %d bytes in %s, and other images wait", errSlow, d.offset+int64(n), total.Round(time.Millisecond))
	}
	if d.waited < d.pace.window {
		return n, err
	}
	if d.arrived < d.pace.bytes {
		return 0, fmt.Errorf("%w: it sent %d bytes in %s, not %d", errSlow, d.arrived, d.waited.Round(time.Millisecond), d.pace.bytes)
	}
	d.before += d.waited
	d.waited, d.arrived = 0, 0
	return n, err
}

// retry waits before the next try, or returns why there is none.
func (d *download) retry(err error) error {
	if d.ctx.Err() != nil {
		return d.ctx.Err()
	}
	var answer *transport.Error
	var refused refusedError
	if errors.As(err, &answer) && !answer.Temporary() || errors.As(err, &refused) || errors.Is(err, errSlow) {
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
