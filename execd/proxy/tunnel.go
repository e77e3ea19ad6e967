package proxy

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"sandbox.internal/internal/tunnel"
)

// Tunnel serves a tunnel ([tunnel]) to a port of the loopback interface, until both directions have
// ended. The caller has authenticated the request.
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
		if err := tunnel.Receive(ctx, server.(tunnel.Writer), client); err != nil {
			cancel(err)
		}
	})
	if err := tunnel.Send(ctx, client, server); err != nil {
		cancel(err)
	}
	copies.Wait()
	if ctx.Err() == nil {
		client.Close(websocket.StatusNormalClosure, "")
	}
}
