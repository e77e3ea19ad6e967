package host

import (
	"context"
	"net"
	"strconv"
)

// Reach tells where the service itself reaches a port of a sandbox: address is the host and port of the sandbox's execd, which passes
// on what is asked for below /proxy/{port}, and token is what execd demands in the header X-EXECD-ACCESS-TOKEN. It waits for a Pending
// sandbox and returns errors as Endpoint does.
func (h *Host) Reach(ctx context.Context, id string, port int) (address, token string, err error) {
	endpoint, err := h.Endpoint(ctx, id, port)
	if err != nil {
		return "", "", err
	}
	a, err := h.registry.get(id)
	if err != nil {
		return "", "", err
	}
	return net.JoinHostPort(h.EngineHost, strconv.Itoa(endpoint.Port)), a.now().Token, nil
}
