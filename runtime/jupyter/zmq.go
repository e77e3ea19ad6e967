package jupyter

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// dialInterval is how often a socket of a kernel that is still starting is tried. Nothing tells when a kernel listens.
const dialInterval = 5 * time.Millisecond

// socketBuffer is how much is read and written at once; a small message has 14 frames and frame headers.
const socketBuffer = 64 << 10

// zmqSocket is one ZeroMQ connection to a kernel.
//
// It uses zmq4's connections, not its sockets: those queue, reconnect and keep goroutines of their own, which end neither in
// time nor always, while a kernel has one peer that never comes back.
type zmqSocket struct {
	channel channel
	raw     net.Conn
	zmtp    *zmq4.Conn
	buffer  *bufferedConn
	out     chan message
}

// dialKernel connects to a channel of a kernel and tries until it listens or ctx ends.
func dialKernel(ctx context.Context, c *connection, of channel, session string) (*zmqSocket, error) {
	network, address := c.address(of)
	tick := time.NewTicker(dialInterval)
	defer tick.Stop()
	var dialer net.Dialer // sets TCP_NODELAY
	for {
		raw, err := dialer.DialContext(ctx, network, address)
		switch {
		case err == nil:
			return handshake(ctx, raw, of, session)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, context.DeadlineExceeded):
			// The dialer's deadline is that of ctx, and may be noticed a moment before it.
			return nil, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func handshake(ctx context.Context, raw net.Conn, of channel, session string) (*zmqSocket, error) {
	interrupt := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	s := &zmqSocket{channel: of, raw: raw, out: make(chan message, 16), buffer: &bufferedConn{
		Conn:   raw,
		reader: bufio.NewReaderSize(raw, socketBuffer),
		writer: bufio.NewWriterSize(raw, socketBuffer),
	}}
	kind := zmq4.Dealer
	if of == channelIOPub {
		kind = zmq4.Sub
	}
	var err error
	s.zmtp, err = zmq4.Open(s.buffer, null.Security(), kind, zmq4.SocketIdentity(session), false, nil)
	if err == nil {
		s.buffer.hold = true
		if of == channelIOPub {
			err = s.write([][]byte{{1}}) // subscribes to everything
		}
	}
	if !interrupt() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("connecting to the kernel's %s channel: %w", of, err)
	}
	return s, nil
}

// receiveThrough makes reads come from a backlog that the caller fills from the socket. What the handshake has read ahead is first.
func (s *zmqSocket) receiveThrough(waiting *backlog) {
	ahead, _ := s.buffer.reader.Peek(s.buffer.reader.Buffered()) // what is buffered can be had without an error
	s.buffer.reader = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), waiting), socketBuffer)
}

// write sends one message. One goroutine at a time may call it.
func (s *zmqSocket) write(frames [][]byte) error {
	if err := s.zmtp.SendMsg(zmq4.NewMsgFrom(frames...)); err != nil {
		return err
	}
	return s.buffer.writer.Flush()
}

// read returns the next message. One goroutine at a time may call it.
func (s *zmqSocket) read() ([][]byte, error) {
	for {
		m, err := s.zmtp.RecvMsg()
		if err != nil {
			return nil, err
		}
		if m.Type != zmq4.CmdMsg { // commands belong to ZeroMQ itself
			return m.Frames, nil
		}
	}
}

// bufferedConn makes few large reads and writes of the many small ones that zmq4 does. zmq4 speaks ZMTP 3.0, which has no pings that
// a reader would have to answer, so reading never writes.
type bufferedConn struct {
	net.Conn
	reader *bufio.Reader
	writer *bufio.Writer
	hold   bool // keep what is written until it is flushed; during the handshake the peer waits for each write
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

func (c *bufferedConn) Write(p []byte) (int, error) {
	n, err := c.writer.Write(p)
	if err == nil && !c.hold {
		err = c.writer.Flush()
	}
	return n, err
}
