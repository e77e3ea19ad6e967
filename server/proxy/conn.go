package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"syscall"
	"time"
)

var (
	errHeaderTooLarge = fmt.Errorf("the header of the answer is larger than %d bytes", maxAnswerHeader)
	errUnasked        = errors.New("the server switches to another protocol without being asked")
)

// longAgo as a deadline ends what waits for a connection.
var longAgo = time.Unix(1, 0)

// conn is a connection of a pool. One request at a time uses it.
type conn struct {
	pool    *pool
	address string
	net     net.Conn
	raw     syscall.RawConn
	r       *bufio.Reader
	w       *bufio.Writer
	since   time.Time // when the pool got it

	header   int64       // bytes that may still come before a header has to be whole; negative when anything may
	answered bool        // something of an answer has come
	release  func() bool // ends the watch on the request's context

	// For open, made once.
	look   func(fd uintptr) bool
	one    [1]byte // what it reads
	looked error   // what it got
}

func newConn(p *pool, address string, opened net.Conn) (*conn, error) {
	system, ok := opened.(syscall.Conn)
	if !ok {
		opened.Close()
		return nil, fmt.Errorf("connection of type %T has no descriptor", opened)
	}
	raw, err := system.SyscallConn()
	if err != nil {
		opened.Close()
		return nil, err
	}
	c := &conn{pool: p, address: address, net: opened, raw: raw, w: bufio.NewWriter(opened)}
	c.r = bufio.NewReader(c)
	c.look = func(fd uintptr) bool {
		_, c.looked = syscall.Read(int(fd), c.one[:])
		return true
	}
	return c, nil
}

// Read implements io.Reader for what parses the answer.
func (c *conn) Read(p []byte) (int, error) {
	if c.header == 0 {
		return 0, errHeaderTooLarge
	}
	if c.header > 0 && int64(len(p)) > c.header {
		p = p[:c.header]
	}
	n, err := c.net.Read(p)
	if n > 0 {
		c.answered = true
		if c.header > 0 {
			c.header -= int64(n)
		}
	}
	return n, err
}

func (c *conn) close() { _ = c.net.Close() } // nobody waits for anything on it

// open looks whether the server has kept the connection, without waiting. It has no
// reason to have sent anything.
func (c *conn) open() bool {
	err := c.raw.Read(c.look)
	return err == nil && errors.Is(c.looked, syscall.EAGAIN)
}

// roundTrip sends the request and reads the header of the answer. After an error the
// connection is closed; otherwise the end of the body gives it back to the pool.
func (c *conn) roundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	c.answered = false
	c.release = context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(longAgo) })
	sent := r.Write(c.w)
	if sent == nil {
		sent = c.w.Flush()
	}
	// A server may refuse a request that it has not read to its end.
	response, err := c.read(r, httptrace.ContextClientTrace(ctx))
	if err != nil {
		c.release()
		c.close()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case sent != nil:
			err = sent
		case errors.Is(err, io.ErrUnexpectedEOF) && !c.answered:
			err = io.EOF
		}
		return nil, err
	}
	again := sent == nil && !response.Close
	if response.Body == http.NoBody {
		c.done(again)
		return response, nil
	}
	response.Body = &keptBody{body: response.Body, conn: c, again: again}
	return response, nil
}

// read reads the header of the answer, and hands the interim ones before it to the trace.
func (c *conn) read(r *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	for {
		c.header = maxAnswerHeader
		response, err := http.ReadResponse(c.r, r)
		switch {
		case err != nil:
			return nil, err
		case response.StatusCode == http.StatusSwitchingProtocols:
			return nil, errUnasked
		case response.StatusCode >= http.StatusOK:
			c.header = -1
			return response, nil
		case trace != nil && trace.Got1xxResponse != nil:
			if err := trace.Got1xxResponse(response.StatusCode, textproto.MIMEHeader(response.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// done ends the use of the connection. It is kept when the answer was read to its end.
func (c *conn) done(again bool) {
	if c.release() && again && c.r.Buffered() == 0 {
		c.pool.keep(c)
		return
	}
	c.close()
}

// keptBody is the body of an answer.
type keptBody struct {
	body  io.Reader
	conn  *conn
	again bool
	err   error // of the end
}

// Read implements io.Reader.
func (b *keptBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.body.Read(p)
	if err != nil {
		b.finish(err)
	}
	return n, err
}

// Close implements io.Closer. What is left of the body is not waited for.
func (b *keptBody) Close() error {
	b.finish(http.ErrBodyReadAfterClose)
	return nil
}

func (b *keptBody) finish(err error) {
	if b.err == nil {
		b.err = err
		b.conn.done(b.again && err == io.EOF)
	}
}
