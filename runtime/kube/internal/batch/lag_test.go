package batch_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// lagging is a RoundTripper whose watches are behind: what the API server sends comes out so much
// later.
type lagging struct {
	inner http.RoundTripper
	lag   time.Duration
}

func (l *lagging) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.inner.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		response.Body = newLaggingBody(response.Body, l.lag)
	}
	return response, err
}

func (l *lagging) WrappedRoundTripper() http.RoundTripper { return l.inner }

// laggingBody hands out what it reads after a while.
type laggingBody struct {
	inner  io.ReadCloser
	lag    time.Duration
	parts  chan part
	closed chan struct{}
	close  sync.Once
	rest   []byte
}

type part struct {
	data []byte
	at   time.Time
	err  error
}

func newLaggingBody(inner io.ReadCloser, lag time.Duration) *laggingBody {
	b := &laggingBody{inner: inner, lag: lag, parts: make(chan part, 100_000), closed: make(chan struct{})}
	go func() {
		for {
			data := make([]byte, 32<<10)
			n, err := inner.Read(data)
			select {
			case b.parts <- part{data[:n], time.Now(), err}:
			case <-b.closed:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return b
}

func (b *laggingBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		select {
		case next := <-b.parts:
			timer := time.NewTimer(b.lag - time.Since(next.at))
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-b.closed:
				return 0, io.EOF
			}
			if len(next.data) == 0 {
				return 0, next.err
			}
			b.rest = next.data
		case <-b.closed:
			return 0, io.EOF
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *laggingBody) Close() error {
	b.close.Do(func() { close(b.closed) })
	return b.inner.Close()
}

// refusals counts the writes of a status, and those that the API server refuses because of the
// version.
type refusals struct {
	http.RoundTripper
	statuses, refused *atomic.Int64
}

func (c *refusals) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil && r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/batchsandboxes/") {
		c.statuses.Add(1)
		if response.StatusCode == http.StatusConflict {
			c.refused.Add(1)
		}
	}
	return response, err
}

func (c *refusals) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }

// TestLaggingWatch: a controller that learns of everything half a second late brings sandboxes
// through their lives with hardly a write that is refused.
func TestLaggingWatch(t *testing.T) {
	const lives, lag = 40, 500 * time.Millisecond
	p := newPlace(t)
	var writes, conflicts atomic.Int64
	p.config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return &refusals{&lagging{inner, lag}, &writes, &conflicts}
	})
	p.control(nil, nil)
	name := func(i int) string { return fmt.Sprintf("b%02d", i) }
	for i := range lives {
		p.must(p.Create(t.Context(), p.batch(name(i), 1)))
	}
	for i := range lives {
		p.has(name(i), "running", running(1))
	}
	// A write that crosses one of another client is refused by right, so the user's stop comes once
	// the controller has nothing to write.
	quiet, before := time.Now(), writes.Load()
	p.eventually(func() error {
		if now := writes.Load(); now != before {
			quiet, before = time.Now(), now
		}
		if time.Since(quiet) < 3*lag {
			return fmt.Errorf("the controller is still writing: %d times", before)
		}
		return nil
	})
	t.Logf("while they started: %d writes, %d refused", writes.Load(), conflicts.Load())
	for i := range lives {
		p.change(name(i), func(b *v1alpha1.BatchSandbox) {
			b.Annotations = map[string]string{v1alpha1.AnnotationStop: v1alpha1.ReasonUserDelete}
		})
	}
	for i := range lives {
		p.reaches(name(i), v1alpha1.PhaseTerminated)
	}
	statuses, refused := writes.Load(), conflicts.Load()
	t.Logf("%d lives: %d writes, %d refused", lives, statuses, refused)
	if refused > lives/20 {
		t.Errorf("%d of %d writes of %d lives were refused", refused, statuses, lives)
	}
}
