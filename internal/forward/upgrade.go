package forward

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// Hijack takes over the connection of the client. Bytes that the client sent behind its request are
// in the buffer already, where net/http's reverse proxy would lose them: the connection returns it
// first. It is reset when it is closed without a CloseWrite before.
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
		reset(c.Conn)
	}
	return c.Conn.Close()
}

// Received takes the place of the body of a response that switches protocols, so that the
// connection is reset when it is closed without a CloseWrite before. net/http's reverse proxy
// passes an end on with CloseWrite and closes both connections after anything else.
func (e *Exchange) Received(response *http.Response) {
	body, ok := response.Body.(io.ReadWriteCloser)
	if !ok || response.StatusCode != http.StatusSwitchingProtocols {
		return
	}
	if e.conn != nil {
		e.conn.upgraded.Store(true)
	}
	response.Body = upgraded{body, e}
}

// upgraded is the connection to the server after a switch of protocols.
type upgraded struct {
	io.ReadWriteCloser
	exchange *Exchange
}

// CloseWrite passes the end of the client's data on.
func (u upgraded) CloseWrite() error {
	u.exchange.ended.Store(true)
	return closeWrite(u.ReadWriteCloser)
}

// Close implements [io.Closer].
func (u upgraded) Close() error {
	if conn := u.exchange.conn; conn != nil && !u.exchange.ended.Load() {
		reset(conn)
	}
	return u.ReadWriteCloser.Close()
}

func closeWrite(conn io.Closer) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return conn.Close()
}

// reset makes the close of a TCP connection that follows one with a reset.
func reset(conn net.Conn) {
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // it fails for a connection that is closed
	}
}
