package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	gen "sandbox.internal/gen/lifecycle"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/server/lifecycle"
)

const (
	// firstLoad is how long the first sample of a stream takes, loadInterval is the time between
	// two.
	firstLoad    = 250 * time.Millisecond
	loadInterval = 2 * time.Second
)

// LoadSampler measures how busy the machine is, between each two calls.
type LoadSampler interface {
	Sample() (lifecycle.HostLoad, error)
}

func (h *handlers) StreamHostLoad(
	ctx context.Context, _ gen.StreamHostLoadRequestObject,
) (gen.StreamHostLoadResponseObject, error) {
	if err := caller(ctx).CanReadAll(); err != nil {
		return nil, err
	}
	if h.hostLoad == nil {
		return nil, lifecycle.Unsupportedf(
			"this service does not run its sandboxes on its own machine, so it cannot measure their host")
	}
	sampler, err := h.hostLoad()
	if err != nil {
		return nil, err
	}
	return loadStream{ctx, sampler, h.clock}, nil
}

// loadStream is the response with samples.
type loadStream struct {
	ctx     context.Context
	sampler LoadSampler
	clock   func() time.Time
}

// VisitStreamHostLoadResponse implements the generated interface.
func (s loadStream) VisitStreamHostLoadResponse(w http.ResponseWriter) error {
	return serve.StreamEvents(s.ctx, w, func(ctx context.Context, out *respond.EventStream) error {
		timer := time.NewTimer(firstLoad)
		defer timer.Stop()
		if out.Flush() != nil {
			return nil // the client has disconnected
		}
		for {
			select {
			case <-timer.C:
			case <-listen.Draining(ctx):
				return nil
			case <-ctx.Done():
				return nil
			}
			load, err := s.sampler.Sample()
			if err != nil {
				return err
			}
			data, err := json.Marshal(toHostLoad(load, s.clock()))
			if err != nil {
				return err
			}
			out.Data(data)
			if out.Flush() != nil {
				return nil
			}
			timer.Reset(loadInterval)
		}
	})
}

func toHostLoad(l lifecycle.HostLoad, at time.Time) gen.HostLoad {
	return gen.HostLoad{
		CPUCount:         l.CPUs,
		CPUUsedPercent:   l.CPUUsedPercent,
		MemoryTotalBytes: l.MemoryTotalBytes,
		MemoryUsedBytes:  l.MemoryUsedBytes,
		DiskTotalBytes:   l.DiskTotalBytes,
		DiskUsedBytes:    l.DiskUsedBytes,
		Timestamp:        at.UTC(),
	}
}
