package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// keptPerServer and keptInAll bound the connections that a keeping proxy holds while
	// no request needs them. Each costs two goroutines and 8 KiB of buffers.
	keptPerServer = 64
	keptInAll     = 1024
	// keptFor is how long a connection is held. Servers give theirs up later, so that few
	// requests use one that is just being closed.
	keptFor = 30 * time.Second
)

// NewKeeping returns a proxy that uses connections again, which is for those who
// forward many small requests. A request that cannot be repeated when its connection
// turns out to be closed, one with a body above all, still gets a fresh one. Close it.
func NewKeeping(logger zerolog.Logger) *Proxy {
	kept := newTransport()
	kept.DisableKeepAlives = false
	kept.MaxIdleConnsPerHost, kept.MaxIdleConns, kept.IdleConnTimeout = keptPerServer, keptInAll, keptFor
	return newProxy(logger, &keeping{kept: kept, fresh: newTransport()})
}

// Close closes connections that no request uses. Call it after the last request.
func (p *Proxy) Close() {
	if keeping, ok := p.transport.(*keeping); ok {
		keeping.kept.CloseIdleConnections()
	}
}

// keeping uses connections again for requests that can be repeated.
type keeping struct{ kept, fresh *http.Transport }

// RoundTrip implements http.RoundTripper.
func (k *keeping) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody || r.Header.Get("Upgrade") != "" {
		return k.fresh.RoundTrip(r)
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace: // what net/http repeats
		return k.kept.RoundTrip(r)
	}
	return k.fresh.RoundTrip(r)
}

// bufferSize is how much of an answer is passed on at a time.
const bufferSize = 64 << 10

// buffers lends out the memory through which answers pass.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return new([bufferSize]byte)[:]
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[bufferSize]byte)(buffer)) }
