package telemetry_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlptrace "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/telemetry"
	"sandbox.internal/test/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector is a receiver of OTLP over HTTP.
type collector struct {
	*httptest.Server
	spans   chan *otlptrace.ResourceSpans
	metrics chan *collectormetrics.ExportMetricsServiceRequest
}

func newCollector(t *testing.T) *collector {
	c := &collector{spans: make(chan *otlptrace.ResourceSpans, 100), metrics: make(chan *collectormetrics.ExportMetricsServiceRequest, 100)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("the collector got the Authorization %q", got)
		}
		body := r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(r.Body); err != nil {
				t.Error(err)
				return
			}
		}
		content, err := io.ReadAll(body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/otlp/v1/traces":
			got := new(collectortrace.ExportTraceServiceRequest)
			if err := proto.Unmarshal(content, got); err != nil {
				t.Error(err)
			}
			for _, spans := range got.ResourceSpans {
				c.spans <- spans
			}
		case "/otlp/v1/metrics":
			got := new(collectormetrics.ExportMetricsServiceRequest)
			if err := proto.Unmarshal(content, got); err != nil {
				t.Error(err)
			}
			c.metrics <- got
		default:
			t.Errorf("the collector got a request for %s", r.URL.Path)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// open opens what sends to the collector.
func open(t *testing.T, c *collector, options telemetry.Options) *telemetry.Telemetry {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20secret")
	options.Endpoint, options.Version, options.Logger = c.URL+"/otlp", "v1", zerolog.New(zerolog.NewTestWriter(t))
	opened, err := telemetry.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// closeAll sends what is left.
func closeAll(t *testing.T, opened *telemetry.Telemetry) {
	t.Helper()
	if err := opened.Close(wait.Context(t)); err != nil {
		t.Error(err)
	}
}

const (
	id, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	sampled    = "00-" + id + "-" + parent + "-01"
	unsampled  = "00-" + id + "-" + parent + "-00"
)

// ended is a request to a sandbox whose answer was a 502.
func ended() serve.Traced {
	return serve.Traced{
		Exchange: serve.Exchange{Operation: "createSandbox", Status: http.StatusBadGateway}, RequestID: "request-1", Route: "/v1/sandboxes",
		Field: func(key string) any {
			if key == "sandbox_id" {
				return "sandbox-1"
			}
			return nil
		},
	}
}

// TestSpan: a request continues the trace of its header, is the parent of what it is forwarded to,
// and is described without its path.
func TestSpan(t *testing.T) {
	c := newCollector(t)
	opened := open(t, c, telemetry.Options{Traces: true})
	r := httptest.NewRequest(http.MethodPost, "/v1/sandboxes?secret=1", nil)
	r.Header.Set("Traceparent", sampled)
	r.Header.Set("Tracestate", "vendor=1")
	end := opened.Tracer().Trace(r)
	forwarded := r.Header.Get("Traceparent")
	if !strings.HasPrefix(forwarded, "00-"+id+"-") || strings.Contains(forwarded, parent) || !strings.HasSuffix(forwarded, "-01") ||
		r.Header.Get("Tracestate") != "vendor=1" {
		t.Errorf("the request is forwarded with %q and %q", forwarded, r.Header.Get("Tracestate"))
	}
	end(ended())
	closeAll(t, opened)
	spans := wait.For(t, "a span", c.spans)
	if text := spans.Resource.String(); !strings.Contains(text, `"sandbox-server"`) || !strings.Contains(text, `"v1"`) {
		t.Errorf("the service is described as %s", text)
	}
	span := spans.ScopeSpans[0].Spans[0]
	attributes := map[string]string{}
	for _, a := range span.Attributes {
		attributes[a.Key] = a.Value.GetStringValue()
		if a.Key == "http.response.status_code" && a.Value.GetIntValue() != http.StatusBadGateway {
			t.Errorf("the status is %d", a.Value.GetIntValue())
		}
	}
	if span.Name != "POST /v1/sandboxes" || span.Kind != otlptrace.Span_SPAN_KIND_SERVER || span.Status.Code != otlptrace.Status_STATUS_CODE_ERROR ||
		attributes["sandbox.sandbox_id"] != "sandbox-1" || attributes["sandbox.operation"] != "createSandbox" ||
		attributes["sandbox.request_id"] != "request-1" || strings.Contains(spans.String(), "secret") {
		t.Errorf("the span is %s", spans)
	}
}

// TestSampling: a client's trace is sent when the client says so, another by the ratio; either way
// what is forwarded belongs to a trace.
func TestSampling(t *testing.T) {
	c := newCollector(t)
	for header, want := range map[string]int{sampled: 1, unsampled: 0, "": 0, "none": 0} {
		opened := open(t, c, telemetry.Options{Traces: true, SampleRatio: 0})
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Traceparent", header)
		end := opened.Tracer().Trace(r)
		if got := r.Header.Get("Traceparent"); len(got) != len(sampled) {
			t.Errorf("a request with %q is forwarded with %q", header, got)
		}
		end(ended())
		closeAll(t, opened)
		if got := len(c.spans); got != want {
			t.Errorf("%q: %d spans were sent, want %d", header, got, want)
		}
		for len(c.spans) > 0 {
			wait.For(t, "a span that has come", c.spans)
		}
	}
}

// TestMetrics: what the registry has is sent, at the interval and at the end.
func TestMetrics(t *testing.T) {
	c := newCollector(t)
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "sandbox_things_total", Help: "Things."})
	registry.MustRegister(counter)
	counter.Add(3)
	opened := open(t, c, telemetry.Options{Metrics: true, Interval: time.Second, Gatherer: registry})
	if opened.Tracer() != nil {
		t.Error("spans are made although traces are not sent")
	}
	got := wait.For(t, "a report", c.metrics)
	closeAll(t, opened)
	metric := got.ResourceMetrics[0].ScopeMetrics[0].Metrics[0]
	if !strings.HasPrefix(metric.Name, "sandbox_things") || metric.GetSum().DataPoints[0].GetAsDouble() != 3 || !metric.GetSum().IsMonotonic {
		t.Errorf("the report has %s", metric)
	}
}

// TestNoCollector: a collector that does not answer delays no request, and costs one line a minute.
func TestNoCollector(t *testing.T) {
	c := newCollector(t)
	c.Close()
	var log strings.Builder
	opened, err := telemetry.Open(t.Context(), telemetry.Options{
		Endpoint: c.URL, Traces: true, Metrics: true, SampleRatio: 1, Interval: time.Second, Gatherer: prometheus.NewRegistry(),
		Logger: zerolog.New(&log),
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		opened.Tracer().Trace(httptest.NewRequest(http.MethodGet, "/", nil))(ended())
	}
	if err := opened.Close(wait.Context(t)); err == nil {
		t.Error("spans were sent to a collector that does not answer")
	}
	if lines := strings.Count(log.String(), "\n"); lines > 1 {
		t.Errorf("%d lines were logged: %s", lines, log.String())
	}
}
