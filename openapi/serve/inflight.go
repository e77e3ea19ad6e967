package serve

import (
	"net/http"
	"sync"
	"time"
)

// inflight counts running handlers. http.Server stops waiting for them once their
// connections are closed or taken over, but what they use is torn down after Serve.
type inflight struct {
	next http.Handler

	mu      sync.Mutex
	count   int
	waiting bool
	none    chan struct{}
}

func newInflight(next http.Handler) *inflight {
	return &inflight{next: next, none: make(chan struct{})}
}

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
	if f.waiting && f.count == 0 {
		f.waiting = false
		close(f.none)
	}
}

// wait reports whether every handler has returned within limit. It is called once.
func (f *inflight) wait(limit time.Duration) bool {
	f.mu.Lock()
	f.waiting = true
	f.settle()
	f.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-f.none:
		return true
	case <-timer.C:
		return false
	}
}
