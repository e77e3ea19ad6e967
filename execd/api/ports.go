package api

import (
	"context"

	"sandbox.internal/execd/internal/ports"
	gen "sandbox.internal/gen/execd"
)

func (h *handlers) ListPorts(
	context.Context,
	gen.ListPortsRequestObject,
) (gen.ListPortsResponseObject, error) {
	found, truncated, err := h.ports.Listening(h.ownPort)
	if err != nil {
		return nil, err
	}
	answer := gen.ListPorts200JSONResponse{Items: []gen.ListeningPort{}, Truncated: truncated}
	for _, port := range found {
		answer.Items = append(answer.Items, toListeningPort(port))
	}
	return answer, nil
}

func toListeningPort(p ports.Port) gen.ListeningPort {
	port := gen.ListeningPort{Port: p.Number, Addresses: []string{}}
	for _, address := range p.Addresses {
		port.Addresses = append(port.Addresses, address.String())
	}
	if p.PID > 0 {
		port.Pid, port.Program = &p.PID, &p.Program
	}
	return port
}
