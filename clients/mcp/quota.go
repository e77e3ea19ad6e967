package mcp

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"
)

// ImageQuota bounds how many bytes of images the calls of a process hold at once, those included
// that their clients are slow to take.
type ImageQuota struct{ free *semaphore.Weighted }

// MaxImages is the most that one call holds of images, in bytes.
const MaxImages = maxImageBytes

// NewImageQuota returns a quota of that many bytes. With fewer than [MaxImages] no image of a file
// can be read.
func NewImageQuota(bytes int64) *ImageQuota { return &ImageQuota{semaphore.NewWeighted(bytes)} }

// Limit returns a context whose calls hold images within the quota. Release, called when the
// answers have been sent or given up, frees what they hold. The calls of other contexts have no
// bound.
func (q *ImageQuota) Limit(ctx context.Context) (_ context.Context, release func()) {
	r := &reservation{free: q.free}
	return context.WithValue(ctx, reservationKey{}, r), r.close
}

type reservationKey struct{}

// reservation is what the calls of one context hold of a quota. A nil one has no bound.
type reservation struct {
	free *semaphore.Weighted

	mu     sync.Mutex
	held   int64
	closed bool
}

func reservationOf(ctx context.Context) *reservation {
	r, _ := ctx.Value(reservationKey{}).(*reservation)
	return r
}

var errClosed = errors.New("the client is gone")

// acquire waits until n bytes more are free, or ctx ends. Only a call that holds nothing may
// wait: two that each hold a part would wait for one another.
func (r *reservation) acquire(ctx context.Context, n int64) error {
	if r == nil {
		return nil
	}
	if err := r.free.Acquire(ctx, n); err != nil {
		return err
	}
	if !r.hold(n) {
		return errClosed
	}
	return nil
}

// tryAcquire is acquire for a call that cannot wait. It reports whether so many bytes were free.
func (r *reservation) tryAcquire(n int64) bool {
	return r == nil || r.free.TryAcquire(n) && r.hold(n)
}

func (r *reservation) hold(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.free.Release(n)
		return false
	}
	r.held += n
	return true
}

// release frees n bytes of those held.
func (r *reservation) release(n int64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.held -= n
		r.free.Release(n)
	}
}

func (r *reservation) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.free.Release(r.held)
	r.held = 0
}
