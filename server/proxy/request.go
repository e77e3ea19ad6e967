package proxy

import (
	"io"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
)

// requestBody passes a client's body on, notes whether it failed, and hands its
// trailers over once it has ended, which ReverseProxy does not.
type requestBody struct {
	io.ReadCloser
	broken atomic.Bool
	from   http.Header // nil when the client announced none
	to     http.Header
}

// watch puts itself between the client's body and the transport. It returns nil for a
// request without a body.
func watch(pr *httputil.ProxyRequest, strip []string) *requestBody {
	if pr.Out.Body == nil || pr.Out.Body == http.NoBody {
		return nil
	}
	body := &requestBody{ReadCloser: pr.Out.Body}
	for _, name := range strip {
		pr.Out.Trailer.Del(name)
	}
	if len(pr.Out.Trailer) > 0 {
		body.from, body.to = pr.In.Trailer, pr.Out.Trailer
	}
	pr.Out.Body = body
	return body
}

// Read implements io.Reader. The transport reads the trailers in the goroutine that
// reads the body, after its end.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		for name := range b.to { // only what was announced and not stripped
			b.to[name] = b.from[name]
		}
	case err != nil:
		b.broken.Store(true)
	}
	return n, err
}

func (b *requestBody) failed() bool { return b != nil && b.broken.Load() }
