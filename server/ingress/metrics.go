package ingress

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/lifecycle"
)

// metrics are the Prometheus metrics of the ingress. No label holds an id.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	duration   prometheus.Histogram
	streaming  prometheus.Histogram
	inFlight   prometheus.Gauge
	streams    prometheus.Gauge
	refusals   *prometheus.CounterVec
	connected  prometheus.Gauge
	reconnects prometheus.Counter
	events     prometheus.Counter
}

// reasons are those of sandbox_ingress_refused_total.
var reasons = []string{
	"no_route", "unknown", "not_running", "incomplete", "not_located", "access", "connections",
	"unanswered",
}

func newMetrics(t *table) *metrics {
	const space = "sandbox_ingress_"
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(
			prometheus.CounterOpts{
				Name: space + "requests_total",
				Help: "Requests that have ended, by status.",
			},
			[]string{"status"},
		),
		duration: prometheus.NewHistogram(
			prometheus.HistogramOpts{
				Name: space + "request_duration_seconds",
				Help: "Time from a request's header to the end of its response, without streams.",
				Buckets: []float64{
					.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60,
				},
			},
		),
		streaming: prometheus.NewHistogram(
			prometheus.HistogramOpts{
				Name:    space + "stream_duration_seconds",
				Help:    "Duration of event streams and upgraded connections.",
				Buckets: []float64{1, 10, 60, 300, 1800, 3600, 14400, 86400},
			},
		),
		inFlight: prometheus.NewGauge(
			prometheus.GaugeOpts{
				Name: space + "requests_in_flight",
				Help: "Requests that have not ended, including streams.",
			},
		),
		streams: prometheus.NewGauge(
			prometheus.GaugeOpts{
				Name: space + "streams_open",
				Help: "Open event streams and upgraded connections.",
			},
		),
		refusals: prometheus.NewCounterVec(
			prometheus.CounterOpts{
				Name: space + "refused_total",
				Help: "Requests that the ingress refused, by reason.",
			},
			[]string{"reason"},
		),
		connected: prometheus.NewGauge(
			prometheus.GaugeOpts{
				Name: space + "events_connected",
				Help: "1 while the routes follow the events of the lifecycle service.",
			},
		),
		reconnects: prometheus.NewCounter(
			prometheus.CounterOpts{
				Name: space + "events_lost_total",
				Help: "Losses of the stream of events, and failed attempts to open it.",
			},
		),
		events: prometheus.NewCounter(
			prometheus.CounterOpts{
				Name: space + "events_total",
				Help: "Events received from the lifecycle service, including pings.",
			},
		),
	}
	m.registry.MustRegister(
		m.requests,
		m.duration,
		m.streaming,
		m.inFlight,
		m.streams,
		m.refusals,
		m.connected,
		m.reconnects,
		m.events,
		&sandboxCollector{
			table: t,
			sandboxes: prometheus.NewDesc(space+"sandboxes",
				"Sandboxes in the table of routes, by state.", []string{"state"}, nil),
			complete: prometheus.NewDesc(space+"routes_complete",
				"1 while the table of routes has every sandbox.", nil, nil),
		},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	for _, reason := range reasons {
		m.refusals.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// RequestBegan implements serve.Observer.
func (m *metrics) RequestBegan() { m.inFlight.Inc() }

// StreamOpened implements serve.Observer.
func (m *metrics) StreamOpened() { m.streams.Inc() }

// RequestEnded implements serve.Observer.
func (m *metrics) RequestEnded(e serve.Exchange) {
	m.inFlight.Dec()
	m.requests.WithLabelValues(statusLabel(e.Status)).Inc()
	if e.Stream {
		m.streams.Dec()
		m.streaming.Observe(e.Took.Seconds())
		return
	}
	m.duration.Observe(e.Took.Seconds())
}

// statusLabel keeps programs in sandboxes from inventing labels.
func statusLabel(status int) string {
	if status == 499 || http.StatusText(status) != "" {
		return strconv.Itoa(status)
	}
	return "other"
}

// sandboxCollector counts sandboxes when it is scraped.
type sandboxCollector struct {
	table               *table
	sandboxes, complete *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *sandboxCollector) Describe(to chan<- *prometheus.Desc) { to <- c.sandboxes; to <- c.complete }

// Collect implements prometheus.Collector.
func (c *sandboxCollector) Collect(to chan<- prometheus.Metric) {
	count, complete := c.table.countByState()
	for _, state := range lifecycle.States() {
		if !state.Final() {
			to <- prometheus.MustNewConstMetric(c.sandboxes, prometheus.GaugeValue,
				float64(count[state]), string(state))
		}
	}
	value := 0.0
	if complete {
		value = 1
	}
	to <- prometheus.MustNewConstMetric(c.complete, prometheus.GaugeValue, value)
}

// admin serves the listener that clients do not reach.
func admin(m *metrics, t *table, draining <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		status := "healthy"
		select {
		case <-draining:
			status = "draining"
		default:
			if !t.ready() {
				status = "incomplete"
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if status != "healthy" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// a client that has disconnected sees no error either way
		_, _ = w.Write([]byte(`{"status":"` + status + `"}` + "\n"))
	})
	return http.TimeoutHandler(mux, time.Minute, "")
}
