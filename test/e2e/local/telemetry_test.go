package local_test

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"sandbox.internal/test/e2e/conformance"
	"sandbox.internal/test/wait"
)

// collector keeps what a service sends by OTLP.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	spans   map[string]string // the ids of the spans of one trace, with their names
	metrics map[string]bool   // names
}

const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

func newCollector(t *testing.T) *collector {
	c := &collector{spans: map[string]string{}, metrics: map[string]bool{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.take(r); err != nil {
			t.Error(err)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// take keeps what one request has.
func (c *collector) take(r *http.Request) error {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = unzipped
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.URL.Path == "/v1/metrics" {
		var report collectormetrics.ExportMetricsServiceRequest
		if err := proto.Unmarshal(content, &report); err != nil {
			return err
		}
		for _, metric := range report.ResourceMetrics[0].ScopeMetrics[0].Metrics {
			c.metrics[metric.Name] = true
		}
		return nil
	}
	var report collectortrace.ExportTraceServiceRequest
	if err := proto.Unmarshal(content, &report); err != nil {
		return err
	}
	for _, span := range report.ResourceSpans[0].ScopeSpans[0].Spans {
		if hex.EncodeToString(span.TraceId) == traceID {
			c.spans[hex.EncodeToString(span.SpanId)] = fmt.Sprintf("%s of %x", span.Name, span.ParentSpanId)
		}
	}
	return nil
}

// TestTelemetry follows one trace from a client through the service into a program in a sandbox,
// and finds the service's metrics at the collector.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	s := conformance.Start(t, onLocal(newMachines()), conformance.Plan{Program: true, Settings: fmt.Sprintf(
		"[telemetry]\nendpoint = %q\nsample_percent = 0\ninterval = 1\n", c.URL)})
	id := conformance.PortServer(t, &s.Client, 8000)
	p := s.Inside(t, id, 8000)
	p.Ready(t)
	const parent = "00f067aa0ba902b7"
	got := p.Send(t, http.MethodGet, "/echo/", nil, "Traceparent", "00-"+traceID+"-"+parent+"-01")
	seen := regexp.MustCompile(`(?m)^Traceparent: 00-` + traceID + `-([0-9a-f]{16})-01\r?$`).FindStringSubmatch(got.Body)
	if seen == nil || seen[1] == parent {
		t.Fatalf("the program in the sandbox got\n%s", got.Body)
	}
	span := func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.spans[seen[1]]
	}
	wait.Until(t, "the collector has the request's span", func() bool { return span() != "" })
	if text := span(); !strings.HasPrefix(text, "GET /") || !strings.HasSuffix(text, " of "+parent) || strings.Contains(text, "echo") {
		t.Errorf("the span is %s", text)
	}
	wait.Until(t, "the collector has the service's metrics", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.metrics["sandbox_sandboxes"]
	})
	if len(s.Log.With(`"message":"request"`, `"trace_id":"`+traceID+`"`, got.Header.Get("X-Request-ID"))) != 1 {
		t.Error("the log has no line of the request with the id of its trace")
	}
	s.Delete(t, id)
}
