package mcp

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Room bounds how many bytes of images the calls of a process hold at once, those included that
// their clients are slow to take.
type Room struct{ free *semaphore.Weighted }

// MaxImages is the most that one call holds of images, in bytes.
const MaxImages = maxImageBytes

// NewRoom returns a Room for that many bytes. With fewer than [MaxImages] no image of a file can be
// read.
func NewRoom(bytes int64) *Room { return &Room{semaphore.NewWeighted(bytes)} }

// Enter returns a context whose calls hold images in the room. Leave, called when the answers have
// been sent or given up, frees what they hold. The calls of other contexts hold what they like.
func (r *Room) Enter(ctx context.Context) (_ context.Context, leave func()) {
	p := &place{free: r.free}
	return context.WithValue(ctx, placeKey{}, p), p.leave
}

type placeKey struct{}

// place is what the calls of one context hold. A nil one has no bound.
type place struct {
	free *semaphore.Weighted

	mu   sync.Mutex
	held int64
	left bool
}

func placeOf(ctx context.Context) *place {
	p, _ := ctx.Value(placeKey{}).(*place)
	return p
}

var errLeft = errors.New("the client is gone")

// take waits until there is room for n bytes more, or ctx ends. Only a call that holds nothing may
// wait: two that each hold a part would wait for one another.
func (p *place) take(ctx context.Context, n int64) error {
	if p == nil {
		return nil
	}
	if err := p.free.Acquire(ctx, n); err != nil {
		return err
	}
	if !p.hold(n) {
		return errLeft
	}
	return nil
}

// try is take for a call that cannot wait. It reports whether there was room.
func (p *place) try(n int64) bool {
	return p == nil || p.free.TryAcquire(n) && p.hold(n)
}

func (p *place) hold(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		p.free.Release(n)
		return false
	}
	p.held += n
	return true
}

// give frees n bytes of those held.
func (p *place) give(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.left {
		p.held -= n
		p.free.Release(n)
	}
}

func (p *place) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	p.free.Release(p.held)
	p.held = 0
}
