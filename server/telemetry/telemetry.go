// Package telemetry sends traces and metrics of the service by OTLP, the protocol of OpenTelemetry,
// over HTTP.
//
// A request is a span, which continues the trace of the request's traceparent header. The header of
// the forwarded request has the span as the parent. Metrics are those of the Prometheus registry.
// Spans that cannot be sent are dropped after the SDK's own attempts: no request waits for the
// collector.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"sandbox.internal/openapi/serve"
)

// errorInterval is the least time between two lines of the log about what could not be sent.
const errorInterval = time.Minute

// Options say what is sent, and where.
type Options struct {
	// Endpoint is the base URL of the collector: /v1/traces and /v1/metrics are below it.
	Endpoint string
	Traces   bool
	Metrics  bool
	// SampleRatio is the part of the traces that begin here which is sent, 0 to 1. A trace that a
	// client began is sent when the client says that it is sampled.
	SampleRatio float64
	// Interval is the time between two reports of the metrics.
	Interval time.Duration
	Version  string              // of the service
	Gatherer prometheus.Gatherer // has the metrics
	Logger   zerolog.Logger
}

// Telemetry sends until [Telemetry.Close].
type Telemetry struct {
	traces  *sdk.TracerProvider // nil when traces are not sent
	metrics *metric.MeterProvider
	tracer  trace.Tracer
}

// Open prepares what sends. The collector need not answer. The OTEL_EXPORTER_OTLP_* variables of
// the environment add headers, certificates and timeouts; OTEL_RESOURCE_ATTRIBUTES adds attributes.
func Open(ctx context.Context, options Options) (*Telemetry, error) {
	// The process has one handler of errors.
	otel.SetErrorHandler(&limited{logger: options.Logger})
	source, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "sandbox-server"),
		attribute.String("service.version", options.Version),
	), resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe the service to the collector (OTEL_RESOURCE_ATTRIBUTES): %w", err)
	}
	t := new(Telemetry)
	if options.Traces {
		exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(options.Endpoint+"/v1/traces"))
		if err != nil {
			return nil, fmt.Errorf("prepare the exporter of traces: %w", err)
		}
		t.traces = sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(source),
			sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(options.SampleRatio))))
		t.tracer = t.traces.Tracer("sandbox.internal/server")
	}
	if options.Metrics {
		exporter, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(options.Endpoint+"/v1/metrics"))
		if err != nil {
			return nil, fmt.Errorf("prepare the exporter of metrics: %w", err)
		}
		reader := metric.NewPeriodicReader(exporter, metric.WithInterval(options.Interval),
			metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(options.Gatherer))))
		t.metrics = metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(source))
	}
	return t, nil
}

// Tracer returns what makes a span of each request, nil when traces are not sent.
func (t *Telemetry) Tracer() serve.Tracer {
	if t.traces == nil {
		return nil
	}
	return t
}

// propagator reads and writes traceparent and tracestate.
var propagator = propagation.TraceContext{}

// Trace implements serve.Tracer.
func (t *Telemetry) Trace(r *http.Request) (end func(serve.Traced)) {
	carrier := propagation.HeaderCarrier(r.Header)
	ctx := propagator.Extract(context.Background(), carrier)
	ctx, span := t.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
	propagator.Inject(ctx, carrier)
	method := methodName(r.Method)
	return func(traced serve.Traced) { endSpan(span, method, traced) }
}

// methodName returns a method of HTTP, or what the conventions of OpenTelemetry have for others,
// which clients could make any number of.
func methodName(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return "_OTHER"
}

// endSpan describes a request by the conventions of OpenTelemetry, and ends its span. The path and
// the query are left out: they carry tokens and users' data.
func endSpan(span trace.Span, method string, traced serve.Traced) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	name := method
	if traced.Route != "" {
		name += " " + traced.Route
		span.SetAttributes(attribute.String("http.route", traced.Route))
	}
	span.SetName(name)
	span.SetAttributes(
		attribute.String("http.request.method", method),
		attribute.Int("http.response.status_code", traced.Status),
		attribute.String("sandbox.operation", traced.Operation),
		attribute.String("sandbox.request_id", traced.RequestID),
	)
	for _, key := range []string{"sandbox_id", "key_name"} {
		if value, ok := traced.Field(key).(string); ok {
			span.SetAttributes(attribute.String("sandbox."+key, value))
		}
	}
	if traced.Status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// Close sends what is left, until ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	if t.traces != nil {
		errs = append(errs, t.traces.Shutdown(ctx))
	}
	if t.metrics != nil {
		errs = append(errs, t.metrics.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// limited logs errors of the SDK, one a minute at most: a collector that does not answer causes one
// for each report.
type limited struct {
	logger zerolog.Logger

	mu   sync.Mutex
	next time.Time
}

// Handle implements otel.ErrorHandler.
func (l *limited) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.After(l.next) {
		l.next = now.Add(errorInterval)
		l.logger.Warn().Err(err).Msg("cannot send traces or metrics to the collector")
	}
}
