package app

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstTrim is how long after the start what the start has left behind is given back: the first
	// requests go first.
	firstTrim = 100 * time.Millisecond
	// trimInterval is how long after a request has ended memory is looked at, and how long until it
	// is looked at again.
	trimInterval = 3 * time.Second
	// trimExcess is how many bytes the daemon may hold beyond the least that it ever needed before
	// memory is given back.
	trimExcess = 2 << 20
)

// trimmer gives memory back to the system after bursts of requests. The Go runtime keeps what it
// once had for minutes, because it cannot predict that a burst is over; there is a daemon in every
// sandbox, and most of them are idle most of the time.
//
// Nothing runs while no request ends.
type trimmer struct {
	next    http.Handler
	trim    func()
	held    func() uint64
	planned atomic.Bool

	mu    sync.Mutex
	least uint64 // bytes held after the trim that left the least; 0 before the first
}

// newTrimmer returns the handler with a trimmer behind it, and plans its first trim.
func newTrimmer(next http.Handler, trim func(), held func() uint64) *trimmer {
	t := &trimmer{next: next, trim: trim, held: held}
	t.plan(firstTrim)
	return t
}

// ServeHTTP implements http.Handler.
func (t *trimmer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer t.plan(trimInterval)
	t.next.ServeHTTP(w, r)
}

func (t *trimmer) plan(after time.Duration) {
	if t.planned.CompareAndSwap(false, true) {
		time.AfterFunc(after, t.check)
	}
}

func (t *trimmer) check() {
	t.planned.Store(false) // a request that ends from here on is followed by another check
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.least > 0 && t.held() <= t.least+trimExcess {
		return
	}
	t.trim()
	if left := t.held(); t.least == 0 || left < t.least {
		t.least = left
	}
}

// giveBack collects twice: what lies in a sync.Pool, the buffers of connections above all, outlives
// one collection.
//
// In between all processors but one are taken away from the Go runtime for an instant, 30 to 60 us.
// Each of them keeps up to 63 ended goroutines for new ones, with a stack each that holds 32 KiB of
// the burst, and up to 512 KiB of free pages, and no collection touches either. A processor that is
// taken away leaves them to the next collection.
func giveBack() {
	debug.FreeOSMemory()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	debug.FreeOSMemory()
}

// held returns how many bytes the Go runtime has of the system, without those of the program
// itself.
func held() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Sys - stats.HeapReleased
}
