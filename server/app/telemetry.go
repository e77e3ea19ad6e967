package app

import (
	"context"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/config"
	"sandbox.internal/server/metrics"
	"sandbox.internal/server/telemetry"
)

// telemetryGrace is how long the service waits at its end for a collector to take what is left.
const telemetryGrace = 3 * time.Second

// openTelemetry prepares what sends traces and metrics, if that is configured.
func (a *App) openTelemetry(ctx context.Context, cfg config.Telemetry, version string, measured *metrics.Metrics) (err error) {
	if cfg.Endpoint == "" {
		return nil
	}
	a.telemetry, err = telemetry.Open(ctx, telemetry.Options{
		Endpoint: cfg.Endpoint, Traces: cfg.Traces, Metrics: cfg.Metrics, SampleRatio: float64(cfg.SamplePercent) / 100, Interval: cfg.Interval.Duration(),
		Version: version, Gatherer: measured.Gatherer(), Logger: a.logger.With().Str("component", "telemetry").Logger(),
	})
	return err
}

// tracer returns what makes a span of each request, nil without telemetry.
func (a *App) tracer() serve.Tracer {
	if a.telemetry == nil {
		return nil
	}
	return a.telemetry.Tracer()
}

// closeTelemetry sends what is left.
func (a *App) closeTelemetry() {
	if a.telemetry == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), telemetryGrace)
	defer cancel()
	if err := a.telemetry.Close(ctx); err != nil {
		a.logger.Warn().Err(err).Msg("cannot send the last traces and metrics to the collector")
	}
}
