// Package metrics counts and times what the lifecycle service does, for Prometheus. A [Metrics]
// belongs to one service: it has a registry of its own. No label carries an id, so the number of
// series does not grow with the number of sandboxes.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sandbox.internal/server/lifecycle"
)

// namespace begins the name of every metric of ours.
const namespace = "sandbox"

// Metrics are the metrics of one service. It is the observer of what it measures: of requests
// ([sandbox.internal/openapi/serve.Observer]) and of sandboxes ([host.Observer]); engines and
// stores it wraps.
type Metrics struct {
	registry *prometheus.Registry
	clock    func() time.Time

	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	streamDuration  *prometheus.HistogramVec
	inFlight        prometheus.Gauge
	streams         prometheus.Gauge

	changes   *prometheus.CounterVec
	stages    *prometheus.HistogramVec
	provision prometheus.Histogram
	lateness  prometheus.Histogram

	pulls        *prometheus.CounterVec
	pullDuration prometheus.Histogram
	pulling      prometheus.Gauge
	flights      flights

	engineCalls  *prometheus.HistogramVec
	engineErrors *prometheus.CounterVec
	storeWrites  *prometheus.HistogramVec
	storeErrors  *prometheus.CounterVec
	auditErrors  prometheus.Counter
	webhooks     *prometheus.CounterVec
}

// Buckets, in seconds. They distinguish fractions of milliseconds, and slow calls up to the longest
// wait there is.
var (
	quick = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	slow  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 180}
	long  = []float64{1, 10, 60, 300, 1800, 3600, 14400, 86400}
)

// New returns metrics with the build of the program and the running process. Clock returns the
// time.
func New(version, commit string, clock func() time.Time) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), clock: clock,
		flights: flights{running: make(map[flightKey]*flight)}}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	build := m.gauge("build_info", "Always 1; the labels identify the build that runs.", "version",
		"commit", "go_version")
	build.WithLabelValues(version, commit, runtime.Version()).Set(1)
	m.requestMetrics()
	m.sandboxMetrics()
	m.engineMetrics()
	return m
}

func (m *Metrics) requestMetrics() {
	m.requests = m.counter("http_requests_total",
		"Requests that have ended, by operation and status.", "operation", "status")
	m.requestDuration = m.histogram("http_request_duration_seconds",
		"Time from a request's header to the end of its answer, streams left out.", quick,
		"operation")
	m.streamDuration = m.histogram("http_stream_duration_seconds",
		"How long streams and connections that were taken over lasted.", long, "operation")
	m.inFlight = m.gauge("http_requests_in_flight",
		"Requests that have not ended, streams among them.").WithLabelValues()
	m.streams = m.gauge("http_streams_open",
		"Event streams and connections that were taken over.").WithLabelValues()
	m.auditErrors = m.counter("audit_write_errors_total",
		"Lines that could not be written to the audit log.").WithLabelValues()
	m.webhooks = m.counter("webhook_deliveries_total",
		"Tries to deliver an event to a webhook, by result.", "webhook", "result")
}

func (m *Metrics) sandboxMetrics() {
	m.changes = m.counter("state_changes_total",
		"Sandboxes that have come into a state, by state and reason.", "state", "reason")
	m.stages = m.histogram("provision_stage_duration_seconds",
		"Time from the end of a stage of provisioning to the end of the next.", slow, "stage")
	m.provision = m.histogram("provision_duration_seconds",
		"Time from the acceptance of a sandbox to Running.",
		slow).WithLabelValues().(prometheus.Histogram)
	m.lateness = m.histogram("expiry_lateness_seconds",
		"How much later than its time a sandbox was ended.",
		quick).WithLabelValues().(prometheus.Histogram)
	for _, stage := range lifecycle.Stages() {
		m.stages.WithLabelValues(string(stage))
	}
}

func (m *Metrics) engineMetrics() {
	m.pulls = m.counter("image_pulls_total", "Pulls of images that have ended, by result.",
		"result")
	for _, result := range []string{pullSucceeded, pullFailed, pullGivenUp} {
		m.pulls.WithLabelValues(result)
	}
	m.pullDuration = m.histogram("image_pull_duration_seconds",
		"How long pulls of images took that succeeded.",
		slow).WithLabelValues().(prometheus.Histogram)
	m.pulling = m.gauge("image_pulls_in_flight",
		"Pulls of images that have not ended.").WithLabelValues()
	m.engineCalls = m.histogram("engine_call_duration_seconds",
		"How long calls of the container engine took.", slow, "call")
	m.engineErrors = m.counter("engine_call_errors_total",
		"Calls of the container engine that returned an error, by its kind.", "call", "kind")
	m.storeWrites = m.histogram("store_write_duration_seconds",
		"How long changes of records took to be durable.", quick, "write")
	m.storeErrors = m.counter("store_write_errors_total", "Changes of records that failed.",
		"write")
	for _, write := range writes() {
		m.storeErrors.WithLabelValues(write)
	}
}

// Sandboxes adds the number of sandboxes in each state, which count returns at every scrape.
func (m *Metrics) Sandboxes(count func() map[lifecycle.State]int) {
	m.registry.MustRegister(&sandboxCollector{
		count: count,
		desc: prometheus.NewDesc(namespace+"_sandboxes",
			"Sandboxes whose record can be read, by state.", []string{"state"}, nil),
	})
}

// Snapshots adds the number of snapshots in each state, which count returns at every scrape.
func (m *Metrics) Snapshots(count func() map[lifecycle.SnapshotState]int) {
	for _, state := range lifecycle.SnapshotStates() {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "snapshots", Help: "Snapshots of sandboxes, by state.",
			ConstLabels: prometheus.Labels{"state": string(state)},
		}, func() float64 { return float64(count()[state]) }))
	}
}

// SpareNetworks adds the networks that are made ahead: how many are free, how many sandboxes have
// taken one, and how many found none. Count returns these at every scrape.
func (m *Metrics) SpareNetworks(count func() (free, taken, missed int)) {
	const requests = "spare_network_requests_total"
	const help = "Sandboxes that could use a network that was made ahead, by whether there was one."
	counter := func(result string, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: requests, Help: help,
			ConstLabels: prometheus.Labels{"result": result},
		}, value)
	}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "spare_networks",
			Help: "Networks that were made ahead and that no sandbox has taken.",
		}, func() float64 { free, _, _ := count(); return float64(free) }),
		counter("taken", func() float64 { _, taken, _ := count(); return float64(taken) }),
		counter("missed", func() float64 { _, _, missed := count(); return float64(missed) }),
	)
}

// NetworkProblem adds whether sandboxes are kept from the network, for which problem returns a
// reason, "" otherwise, at every scrape.
func (m *Metrics) NetworkProblem(problem func() string) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "network_problem",
		Help: "1 while sandboxes do not reach the network for a reason that GET /v1/version gives.",
	}, func() float64 {
		if problem() == "" {
			return 0
		}
		return 1
	}))
}

// Webhooks adds how old the event is that each webhook waits for, which oldest returns by their
// names at every scrape; 0 when it waits for none.
func (m *Metrics) Webhooks(oldest func() map[string]time.Duration) {
	for webhook := range oldest() {
		for _, result := range []string{webhookDelivered, webhookFailed} {
			m.webhooks.WithLabelValues(webhook, result)
		}
	}
	m.registry.MustRegister(&webhookCollector{
		oldest: oldest,
		desc: prometheus.NewDesc(namespace+"_webhook_oldest_undelivered_seconds",
			"Age of the oldest event that a webhook has not got; 0 when it has all.", []string{"webhook"}, nil),
	})
}

// Handler answers scrapes, in the format that the scraper asks for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: nil})
}

// Gatherer returns what a scrape shows.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name,
		Help: help}, labels)
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name,
		Help: help}, labels)
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) histogram(name, help string, buckets []float64,
	labels ...string) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name,
		Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(vec)
	return vec
}

// sandboxCollector counts sandboxes when it is scraped: a number that is kept beside the records
// could drift away from them.
type sandboxCollector struct {
	count func() map[lifecycle.State]int
	desc  *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *sandboxCollector) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *sandboxCollector) Collect(to chan<- prometheus.Metric) {
	count := c.count()
	for _, state := range lifecycle.States() {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count[state]),
			string(state))
	}
}

// webhookCollector looks at the webhooks when it is scraped: ages grow by themselves.
type webhookCollector struct {
	oldest func() map[string]time.Duration
	desc   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *webhookCollector) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *webhookCollector) Collect(to chan<- prometheus.Metric) {
	for webhook, age := range c.oldest() {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, age.Seconds(), webhook)
	}
}
