package proxy

import (
	"net/http"
	"sync"

	"github.com/rs/zerolog"
)

// NewKeeping returns a proxy that uses connections again, which is for those who
// forward many small requests. A request that cannot be repeated when its connection
// turns out to be dead, one with a body above all, still gets a fresh one. Close it.
func NewKeeping(logger zerolog.Logger) *Proxy {
	return newProxy(logger, &keeping{kept: newPool(), fresh: newTransport()})
}

// Close lets go of connections that no request uses, and keeps none from then on.
func (p *Proxy) Close() {
	if keeping, ok := p.transport.(*keeping); ok {
		keeping.kept.close()
	}
}

// keeping uses connections again for requests that can be repeated.
type keeping struct {
	kept  *pool
	fresh *http.Transport
}

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
