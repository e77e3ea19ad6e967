// Package subrequest lets a translation in front of the service ask it in a client's name: each
// request goes through the whole service, with its authentication, rules, limits and logs.
package subrequest

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
)

const (
	// MaxResponse is how many bytes of a response are kept.
	MaxResponse = 16 << 20
	// RequestIDHeader is the same in all requests to the service that one request of a client
	// becomes.
	RequestIDHeader = "X-Request-Id"
)

// Request is what the service is asked. Without a Body there is none.
type Request struct {
	Method, Path string
	Query        url.Values
	Body         []byte
}

// Do asks the service in the name of the client whose request is r, and keeps the response. The
// client, which receives nothing yet, is w.
func Do(service http.Handler, w http.ResponseWriter, r *http.Request, ask Request) *Response {
	inner := *r
	inner.Method, inner.Body, inner.ContentLength = ask.Method, http.NoBody, int64(len(ask.Body))
	inner.URL = &url.URL{Path: ask.Path, RawQuery: ask.Query.Encode()}
	inner.RequestURI = inner.URL.RequestURI()
	inner.Header = r.Header.Clone()
	inner.Header.Del("Content-Length")
	if ask.Body != nil {
		inner.Body = io.NopCloser(bytes.NewReader(ask.Body))
		if inner.Header.Get("Content-Type") == "" {
			inner.Header.Set("Content-Type", "application/json")
		}
	}
	kept := NewResponse(w)
	service.ServeHTTP(kept, &inner)
	return kept
}

// Response is a response of the service.
type Response struct {
	Status int
	Body   bytes.Buffer
	// TooLarge says that there were more bytes than are kept; Body has none of them.
	TooLarge bool

	client http.ResponseWriter
	header http.Header
}

// NewResponse returns a response without content, for the client w.
func NewResponse(w http.ResponseWriter) *Response {
	return &Response{client: w, header: http.Header{}}
}

// Header implements http.ResponseWriter.
func (r *Response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *Response) WriteHeader(status int) {
	if r.Status == 0 && status >= http.StatusOK {
		r.Status = status
	}
}

// Write implements http.ResponseWriter. It drops a response that is too large, and reports no
// error: the service would take one for a client that has gone, and cut the connection.
func (r *Response) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.TooLarge || r.Body.Len()+len(p) > MaxResponse {
		r.TooLarge, r.Body = true, bytes.Buffer{}
		return len(p), nil
	}
	return r.Body.Write(p)
}

// FlushError keeps a [http.ResponseController] from flushing to the client, which gets nothing yet.
func (r *Response) FlushError() error { return nil }

// Unwrap gives a [http.ResponseController] the deadlines of the client's connection.
func (r *Response) Unwrap() http.ResponseWriter { return r.client }

// OK reports success.
func (r *Response) OK() bool { return r.Status >= 200 && r.Status < 300 }
