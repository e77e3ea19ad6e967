package mcphttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// carried are the headers that requests have from the caller's: those of API keys, and those that
// describe who called a proxy before the service.
var carried = []string{
	"SERVICE-API-KEY", "Authorization", "X-API-Key",
	"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host",
}

// inProcess sends requests to a handler of this process, in the name of a request that it got: with
// the same key and from the same address. It implements http.RoundTripper.
type inProcess struct {
	handler http.Handler
	caller  *http.Request
	id      string // of that request, which all requests in its name have in the log
}

// RoundTrip implements http.RoundTripper.
func (t *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	inner := r.Clone(ctx)
	inner.Host, inner.RequestURI = r.URL.Host, r.URL.RequestURI()
	inner.RemoteAddr, inner.TLS = t.caller.RemoteAddr, t.caller.TLS
	inner.Proto, inner.ProtoMajor, inner.ProtoMinor = "HTTP/1.1", 1, 1
	switch {
	case inner.Body == nil:
		inner.Body = http.NoBody
	case inner.ContentLength == 0 && inner.Body != http.NoBody:
		inner.ContentLength = -1 // unknown: a client says it in another way than a server
	}
	for _, name := range carried {
		inner.Header.Del(name)
		if values := t.caller.Header.Values(name); len(values) > 0 {
			inner.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	inner.Header.Set("X-Request-Id", t.id)
	reader, writer := io.Pipe()
	a := &answer{header: http.Header{}, body: writer, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer func() {
			_ = inner.Body.Close()
			if problem := recover(); problem != nil { // as net/http does it: the answer breaks off
				_ = writer.CloseWithError(io.ErrUnexpectedEOF)
				a.WriteHeader(http.StatusInternalServerError)
				return
			}
			a.WriteHeader(http.StatusOK) // unless there was one
			_ = writer.Close()
		}()
		t.handler.ServeHTTP(a, inner)
	}()
	select {
	case <-a.begun:
	case <-ctx.Done():
		if r.Context().Err() != nil {
			_ = reader.CloseWithError(context.Cause(r.Context()))
			return nil, context.Cause(r.Context())
		}
		<-a.begun // the handler has returned
	}
	length, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, ContentLength: length, Request: r,
		Body: &answerBody{PipeReader: reader, cancel: cancel},
	}, nil
}

// answerBody ends the handler's request when it is closed.
type answerBody struct {
	*io.PipeReader
	cancel func()
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// answer is where a handler writes. It implements http.ResponseWriter and http.Flusher.
type answer struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	begun  chan struct{}
	status int
	sent   http.Header
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK {
		return // an answer that is to be followed by another one
	}
	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.begun)
	})
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	n, err := a.body.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = http.ErrAbortHandler
	}
	return n, err
}

// Flush implements http.Flusher. Written bytes are there already.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }
