package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"
)

// tunnelPiece is how many bytes of a connection are in a message.
const tunnelPiece = 32 << 10

// errTunnelMessage is a message that a tunnel has no use for.
var errTunnelMessage = errors.New("a tunnel has binary messages only")

// Tunnel serves a WebSocket that carries the bytes of a connection to a port of the loopback
// interface, whatever protocol they are of, until both directions have ended. A binary message has
// bytes, and an empty one ends its direction. The caller has authenticated the request.
func (p *Proxy) Tunnel(w http.ResponseWriter, r *http.Request, segment string) {
	port, err := parsePort(segment)
	if err != nil {
		p.options.ErrorBody(w, r, http.StatusBadRequest, CodeInvalidPort, err.Error())
		return
	}
	server, err := dialRaw(r.Context(), "tcp", loopback(port))
	if err != nil {
		p.options.ErrorBody(w, r, http.StatusBadGateway, CodePortNotListening, fmt.Sprintf("no process listens on port %d of the sandbox", port))
		return
	}
	defer server.Close()
	// Most of it is encrypted, or compressed already.
	client, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // it is answered
	}
	defer client.CloseNow() // also of what is closed already
	client.SetReadLimit(-1)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { // a copy that fails ends the other one
		client.CloseNow()
		server.Close()
	})
	defer stop()
	var copies sync.WaitGroup
	copies.Go(func() {
		if err := fromTunnel(ctx, server, client); err != nil {
			cancel(err)
		}
	})
	if err := toTunnel(ctx, client, server); err != nil {
		cancel(err)
	}
	copies.Wait()
	if ctx.Err() == nil {
		client.Close(websocket.StatusNormalClosure, "")
	}
}

// fromTunnel writes to the server what the client sends, until the client ends that.
func fromTunnel(ctx context.Context, server net.Conn, client *websocket.Conn) error {
	buffer := make([]byte, tunnelPiece)
	for {
		kind, message, err := client.Reader(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			return errTunnelMessage
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{server}, message, buffer)
		if err != nil {
			return err
		}
		if n == 0 {
			return server.(interface{ CloseWrite() error }).CloseWrite()
		}
	}
}

// toTunnel sends to the client what the server writes, until the server ends that.
func toTunnel(ctx context.Context, client *websocket.Conn, server net.Conn) error {
	buffer := make([]byte, tunnelPiece)
	for {
		n, err := server.Read(buffer)
		if n > 0 {
			if err := client.Write(ctx, websocket.MessageBinary, buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return client.Write(ctx, websocket.MessageBinary, nil)
		}
		if err != nil {
			return err
		}
	}
}
