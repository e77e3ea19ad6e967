package network

import (
	"context"
	"errors"
	"io"
	"net"
)

// join passes on what two connections send, until both have ended, the container is detached or ctx
// ends.
func join(ctx context.Context, gone <-chan struct{}, client, server *net.TCPConn) {
	ended := make(chan error, 2)
	pass := func(to, from *net.TCPConn) {
		_, err := io.Copy(to, from) // in the kernel
		ended <- errors.Join(err, to.CloseWrite())
	}
	go pass(client, server)
	go pass(server, client)
	open := 2
	for open > 0 {
		select {
		case err := <-ended:
			if open--; err == nil {
				continue
			}
		case <-gone:
		case <-ctx.Done():
		}
		break
	}
	if open > 0 {
		reset(client)
		reset(server)
	}
	for ; open > 0; open-- {
		<-ended
	}
	_, _ = client.Close(), server.Close()
}

// reset closes a connection at once, and drops what was not sent.
func reset(conn *net.TCPConn) { _, _ = conn.SetLinger(0), conn.Close() }
