// Package forward is what reverse proxies share that send one request to one server: how the body
// of the request and the connection to the server end.
//
// A server may answer before it has read the body, and then close the connection. The response
// counts, and not the error of the write that fails: see [Conn]. No read of the client's body
// outlives the handler: see [Exchange.End]. In a protocol that a request was upgraded to, the end
// of the data may be the end of the connection, so one that breaks must not look like one that
// ends: see [Exchange.Received].
package forward

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// errEnded is the error of a read of the client's body after [Exchange.End], or after the server
// has ceased to take it.
var errEnded = errors.New("forward: the request's body is not sent any further")

// Exchange is one request of a client, sent to a server. The zero value is ready for use.
type Exchange struct {
	conn *Conn // nil until there is a connection, and when it is not one of this package's
	body *body // nil when the request has none

	ended atomic.Bool // CloseWrite was called after a switch of protocols
	http1 bool        // the client has a connection for one request at a time
}

// Send returns the request to send in place of out, which is in as a proxy has prepared it.
// Trailers that in announces and out does not have in its Trailer are not sent.
func (e *Exchange) Send(in, out *http.Request) *http.Request {
	e.http1 = in.ProtoMajor == 1
	hasBody := out.Body != nil && out.Body != http.NoBody
	if !hasBody && in.Header.Get("Upgrade") == "" {
		return out // nothing to watch, and a trace has its price
	}
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		e.conn, _ = info.Conn.(*Conn)
	}}
	out = out.WithContext(httptrace.WithClientTrace(out.Context(), trace))
	if hasBody {
		e.body = &body{ReadCloser: out.Body, exchange: e, end: make(chan struct{})}
		if len(out.Trailer) > 0 {
			e.body.from, e.body.to = in.Trailer, out.Trailer
		}
		out.Body = e.body
	}
	return out
}

// End ends the reading of the client's body. Call it before the handler returns.
func (e *Exchange) End() {
	if e.body != nil {
		close(e.body.end)
	}
}

// WriteHeader sends a status to the client. Interim ones (1xx) go straight to the connection:
// layers in between take any status for the final one and would drop the response that follows.
func (e *Exchange) WriteHeader(w http.ResponseWriter, status int) {
	switch {
	case status == http.StatusContinue:
		return // net/http sends it itself, as soon as the transport reads the body
	case status == http.StatusSwitchingProtocols:
	case status < http.StatusOK:
		for {
			layer, ok := w.(interface{ Unwrap() http.ResponseWriter })
			if !ok {
				break
			}
			w = layer.Unwrap()
		}
	default:
		e.AnnounceClose(w.Header())
	}
	w.WriteHeader(status)
}

// AnnounceClose says in the header of a final response that the connection closes after it, when
// the client's body has not come to its end. It may still do so, but that is not known yet.
func (e *Exchange) AnnounceClose(header http.Header) {
	if e.http1 && e.body != nil && !e.body.whole.Load() {
		header.Set("Connection", "close")
	}
}

// BodyFailed reports whether the client's body broke off or was malformed.
func (e *Exchange) BodyFailed() bool { return e.body != nil && e.body.broken.Load() }

// body passes a client's body on, and its trailers, which net/http's reverse proxy does not.
type body struct {
	io.ReadCloser
	exchange      *Exchange
	end           chan struct{} // closed by Exchange.End
	whole, broken atomic.Bool
	from, to      http.Header // from is nil when the client announced no trailers
}

// Read implements io.Reader. The transport reads the trailers in the goroutine that reads the body,
// after its end.
func (b *body) Read(p []byte) (int, error) {
	if conn := b.exchange.conn; conn != nil && conn.dropped.Load() {
		select { // an error before would take the place of the response
		case <-b.end:
		case <-conn.ended: // there is none; the transport returns only after this read
			return 0, errEnded
		}
	}
	select {
	case <-b.end:
		return 0, errEnded
	default:
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		for name := range b.to {
			b.to[name] = b.from[name]
		}
		b.whole.Store(true)
	case err != nil:
		b.broken.Store(true)
	}
	return n, err
}

// Conn is a connection to a server. It reports no error of a write to the transport, which would
// return that in place of the response: after the first error it drops what is written, and what
// comes of the exchange is what can be read.
type Conn struct {
	net.Conn
	dropped  atomic.Bool
	upgraded atomic.Bool   // both directions are the data's, and errors of a write as well
	ended    chan struct{} // closed when nothing more can be read
	end      func()        // closes it
}

// NewConn returns the connection for a transport's DialContext.
func NewConn(conn net.Conn) *Conn {
	ended := make(chan struct{})
	return &Conn{Conn: conn, ended: ended, end: sync.OnceFunc(func() { close(ended) })}
}

// Read implements io.Reader.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.end()
	}
	return n, err
}

// Close implements io.Closer.
func (c *Conn) Close() error {
	c.end()
	return c.Conn.Close()
}

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) {
	if c.dropped.Load() {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	if err != nil && !c.upgraded.Load() {
		c.dropped.Store(true)
		return len(p), nil
	}
	return n, err
}

// CloseWrite ends the data of one direction.
func (c *Conn) CloseWrite() error { return closeWrite(c.Conn) }

// SetLinger is that of a TCP connection, see [net.TCPConn.SetLinger].
func (c *Conn) SetLinger(seconds int) error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.SetLinger(seconds)
	}
	return errors.ErrUnsupported
}
