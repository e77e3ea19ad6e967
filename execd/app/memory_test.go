package app

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTrimmer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mib = 1 << 20
		var now, needed, trims atomic.Int64
		now.Store(5 * mib)
		needed.Store(3 * mib)
		trimmer := newTrimmer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				time.Sleep(time.Hour)
			}
		}), func() { trims.Add(1); now.Store(needed.Load()) }, func() uint64 { return uint64(now.Load()) })
		request := func(path string) {
			trimmer.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		}
		after := func(wait time.Duration, want int64, what string) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if got := trims.Load(); got != want {
				t.Fatalf("%s: %d trims, want %d", what, got, want)
			}
		}
		after(firstTrim, 1, "the start")
		after(time.Hour, 1, "nothing happens")
		request("/")
		now.Add(trimExcess)
		after(time.Hour, 1, "little more is held")
		now.Add(1)
		after(time.Hour, 1, "no request has ended")
		for range 1000 {
			request("/")
		}
		after(trimInterval-1, 1, "a burst has just ended")
		after(1, 2, "a burst has ended")

		// Half of the streams stay: what they need is tried to be given back as long as requests
		// end, and is not taken for the least.
		go request("/wait")
		now.Store(40 * mib)
		needed.Store(20 * mib)
		request("/")
		after(trimInterval, 3, "half of a burst has ended")
		after(time.Hour-trimInterval, 3, "the other half goes on")
		needed.Store(3 * mib)
		after(trimInterval, 4, "the other half has ended")
	})
}

func TestGiveBack(t *testing.T) {
	const size = 64 << 20
	processors := runtime.GOMAXPROCS(0)
	waste := make([]byte, size)
	before := held()
	runtime.KeepAlive(waste)
	giveBack()
	if after := held(); after > before-size/2 {
		t.Errorf("of %d bytes, %d of which are unused, %d are still held", before, size, after)
	}
	if now := runtime.GOMAXPROCS(0); now != processors {
		t.Errorf("there are %d processors, before there were %d", now, processors)
	}
}
