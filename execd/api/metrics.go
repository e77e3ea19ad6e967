package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"sandbox.internal/execd/internal/metrics"
	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
	"sandbox.internal/openapi/serve/listen"
	"sandbox.internal/openapi/serve/respond"
	"sandbox.internal/wire/sandboxhttp"
)

// watchInterval is the time between two events of a metrics stream (execd document, "Health and
// metrics").
const watchInterval = time.Second

// Ping proves to whoever challenges it that this is the daemon that holds the token.
func (h *handlers) Ping(_ context.Context, request gen.PingRequestObject) (gen.PingResponseObject, error) {
	var headers gen.Ping200ResponseHeaders
	if challenge := request.Params.XEXECDCHALLENGE; challenge != nil {
		if proof := sandboxhttp.Proof(h.token, *challenge); proof != "" {
			headers.XEXECDPROOF = &proof
		}
	}
	return gen.Ping200Response{Headers: headers}, nil
}

func (h *handlers) GetMetrics(ctx context.Context, request gen.GetMetricsRequestObject) (gen.GetMetricsResponseObject, error) {
	snapshot, err := h.metrics.Sample()
	if err != nil {
		return nil, err
	}
	if wantsText(serve.Request(ctx), request.Params.Format) {
		text := metrics.Prometheus(snapshot)
		return gen.GetMetrics200TextPlainVersion004Response{Body: bytes.NewReader(text), ContentLength: int64(len(text))}, nil
	}
	return gen.GetMetrics200JSONResponse(toMetrics(snapshot)), nil
}

func (h *handlers) WatchMetrics(ctx context.Context, _ gen.WatchMetricsRequestObject) (gen.WatchMetricsResponseObject, error) {
	// The daemon's sampler has a past, so the first event is as good as the others.
	first, err := h.metrics.Sample()
	if err != nil {
		return nil, err
	}
	// A sampler of its own: CPU use over this stream's seconds, whatever other clients ask.
	return metricsStream{ctx: ctx, first: first, sampler: metrics.New(metrics.Options{}), linger: h.linger}, nil
}

// wantsText reports whether the client asks for the Prometheus text format, by parameter or by
// header.
func wantsText(r *http.Request, format *gen.MetricsFormat) bool {
	if format != nil {
		return *format == gen.MetricsFormatPrometheus
	}
	// Prometheus itself names its newer formats first.
	for _, media := range serve.Accepted(r) {
		if media == "text/plain" || media == "application/json" {
			return media == "text/plain"
		}
	}
	return false
}

// metricsStream is the answer with a snapshot every second.
type metricsStream struct {
	ctx     context.Context
	first   metrics.Snapshot
	sampler *metrics.Sampler
	linger  time.Duration
}

// VisitWatchMetricsResponse implements the generated interface.
func (s metricsStream) VisitWatchMetricsResponse(w http.ResponseWriter) error {
	out := respond.NewEventStream(s.ctx, w, respond.EventStreamOptions{})
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for snapshot := s.first; ; {
		data, err := json.Marshal(toMetrics(snapshot))
		if err != nil {
			return err
		}
		out.Data(data)
		if out.Flush() != nil {
			return nil // the client has left
		}
		select {
		case <-ticker.C:
		case <-listen.Draining(s.ctx):
			keepOpen(s.ctx, s.linger)
			return nil
		case <-s.ctx.Done():
			return nil
		}
		if snapshot, err = s.sampler.Sample(); err != nil {
			return err
		}
	}
}

func toMetrics(s metrics.Snapshot) gen.Metrics {
	return gen.Metrics{
		CPUCount:     s.CPUCount,
		CPUUsedPct:   s.CPUUsedPct,
		MemTotalMib:  s.MemTotalMiB,
		MemUsedMib:   s.MemUsedMiB,
		MemCacheMib:  &s.MemCacheMiB,
		DiskTotalMib: &s.DiskTotalMiB,
		DiskUsedMib:  &s.DiskUsedMiB,
		Timestamp:    s.Timestamp,
	}
}
