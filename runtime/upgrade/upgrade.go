// Package upgrade makes the connections of a request that was upgraded to another protocol end on
// one side of a [httputil.ReverseProxy] as they ended on the other. In such a protocol the end of
// the data may be the end of the connection, so one that breaks must not look like one that ends.
// ReverseProxy passes an end on with CloseWrite and closes both connections after anything else: here
// a connection is reset when it is closed without a CloseWrite before.
package upgrade

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Hijack takes over the connection of the client. What the client sent behind its request is in
// the buffer already, where ReverseProxy would lose it: the connection returns it first.
func Hijack(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	taken := &client{Conn: conn}
	if early, err := buffered.Reader.Peek(buffered.Reader.Buffered()); err == nil {
		taken.early = early
	}
	return taken, buffered, nil
}

// client is the connection of a client.
type client struct {
	net.Conn
	early []byte
	ended atomic.Bool
}

// Read implements [io.Reader].
func (c *client) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite passes the end of the server's data on.
func (c *client) CloseWrite() error {
	c.ended.Store(true)
	return closeWrite(c.Conn)
}

// Close implements [io.Closer].
func (c *client) Close() error {
	if !c.ended.Load() {
		Reset(c.Conn)
	}
	return c.Conn.Close()
}

// Backend is the connection to the server of one request. The zero value is ready for use.
type Backend struct {
	io.ReadWriteCloser
	conn  net.Conn
	ended atomic.Bool
}

// Trace returns the request to send in place of r, so that the connection is known.
func (b *Backend) Trace(r *http.Request) *http.Request {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { b.conn = info.Conn }}
	return r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
}

// Watch takes the place of the body of an answer that switches protocols.
func (b *Backend) Watch(response *http.Response) {
	if body, ok := response.Body.(io.ReadWriteCloser); ok {
		b.ReadWriteCloser, response.Body = body, b
	}
}

// CloseWrite passes the end of the client's data on.
func (b *Backend) CloseWrite() error {
	b.ended.Store(true)
	return closeWrite(b.ReadWriteCloser)
}

// Close implements [io.Closer].
func (b *Backend) Close() error {
	if !b.ended.Load() {
		Reset(b.conn)
	}
	return b.ReadWriteCloser.Close()
}

func closeWrite(conn io.Closer) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}

// Reset makes the close of a TCP connection that follows one with a reset.
func Reset(conn net.Conn) {
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // it fails for a connection that is closed
	}
}
