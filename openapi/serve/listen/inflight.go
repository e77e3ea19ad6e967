package listen

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// inflight counts running handlers. http.Server stops waiting for them once their
// connections are closed or taken over, but what they use is torn down after Serve.
type inflight struct {
	next http.Handler

	mu    sync.Mutex
	count int
	none  chan struct{} // closed once count is 0; nil unless a caller waits
}

func newInflight(next http.Handler) *inflight { return &inflight{next: next} }

func (f *inflight) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.add(1)
	defer f.add(-1)
	f.next.ServeHTTP(w, r)
}

func (f *inflight) add(delta int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count += delta
	f.settle()
}

// settle releases the waiter. The caller holds mu.
func (f *inflight) settle() {
	if f.none != nil && f.count == 0 {
		close(f.none)
		f.none = nil
	}
}

// wait reports whether every handler has returned within limit.
func (f *inflight) wait(limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return f.done(ctx) == nil
}

// done returns when no handler runs, or with the cause of ctx when that ends before. It is called
// by one goroutine at a time.
func (f *inflight) done(ctx context.Context) error {
	none := make(chan struct{})
	f.mu.Lock()
	f.none = none
	f.settle()
	f.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
