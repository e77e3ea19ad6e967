// Package tunnel is what both ends of a tunnel share: a WebSocket that carries the bytes of a
// connection, whatever protocol they are of. A binary message has bytes, and an empty one ends its
// direction. execd serves tunnels to ports of the sandbox; clients open them.
package tunnel

import (
	"context"
	"errors"
	"io"

	"github.com/coder/websocket"
)

// pieceBytes is how many bytes of a connection are in a message.
const pieceBytes = 32 << 10

// ErrMessage is the error of a message that is not binary.
var ErrMessage = errors.New("a tunnel has binary messages only")

// Send sends what can be read, until its end or an error, and then ends the direction. It returns
// nil at the end.
func Send(ctx context.Context, to *websocket.Conn, from io.Reader) error {
	buffer := make([]byte, pieceBytes)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if err := to.Write(ctx, websocket.MessageBinary, buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return to.Write(ctx, websocket.MessageBinary, nil)
		}
		if err != nil {
			return err
		}
	}
}

// Writer is one direction of a connection.
type Writer interface {
	io.Writer
	// CloseWrite ends the direction.
	CloseWrite() error
}

// Receive writes what the other end sends, until that ends the direction, which Receive passes on.
// It returns [ErrMessage], and nil at the end. The caller has taken the limit of reads away.
func Receive(ctx context.Context, to Writer, from *websocket.Conn) error {
	buffer := make([]byte, pieceBytes)
	for {
		kind, message, err := from.Reader(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			return ErrMessage
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{to}, message, buffer)
		if err != nil {
			return err
		}
		if n == 0 {
			return to.CloseWrite()
		}
	}
}
