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
	"os"
	"syscall"
	"time"
)

// dialInterval is how often a socket of a kernel that is still starting is tried. There is no event
// for it.
const dialInterval = 5 * time.Millisecond

// socketBuffer is how much is read and written at once; a small message has 14 frames and frame
// headers.
const socketBuffer = 16 << 10

// zmqSocket is one ZeroMQ connection to a kernel. Libraries for ZeroMQ allocate what a frame
// announces, and a kernel is a sandbox's: its cells write to its sockets what they like.
type zmqSocket struct {
	channel channel
	raw     net.Conn
	reader  *bufio.Reader
	writer  *bufio.Writer
	out     chan message
}

// dialKernel connects to a channel of a kernel and tries until it listens or ctx ends.
func dialKernel(ctx context.Context, c *connection, of channel,
	session string) (*zmqSocket, error) {
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
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) &&
			!errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded):
			// The dialer's deadline is that of ctx, and may be noticed a moment before it; while it
			// waits for the connection, by the socket.
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
	s := &zmqSocket{
		channel: of, raw: raw, out: make(chan message, 16),
		reader: bufio.NewReaderSize(raw, socketBuffer),
		writer: bufio.NewWriterSize(raw, socketBuffer),
	}
	socketType := "DEALER"
	if of == channelIOPub {
		socketType = "SUB"
	}
	err := greet(s.reader, s.writer, socketType, session)
	if err == nil && of == channelIOPub {
		err = s.write([][]byte{{1}}) // subscribes to everything
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

// receiveThrough makes reads come from a backlog that the caller fills from the socket. What the
// handshake has read ahead is first.
func (s *zmqSocket) receiveThrough(waiting io.Reader) {
	ahead, _ := s.reader.Peek(s.reader.Buffered()) // what is buffered can be had without an error
	s.reader = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), waiting),
		socketBuffer)
}

// write sends one message. One goroutine at a time may call it.
func (s *zmqSocket) write(frames [][]byte) error {
	for i, frame := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		if err := writeFrame(s.writer, flags, frame); err != nil {
			return err
		}
	}
	return s.writer.Flush()
}

// read returns the next message, as readMessage does. One goroutine at a time may call it.
func (s *zmqSocket) read() ([][]byte, error) { return readMessage(s.reader) }
