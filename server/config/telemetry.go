package config

import (
	"net/url"
	"strings"
)

// Telemetry is the section [telemetry]: traces and metrics, sent by OTLP over HTTP to a collector
// of OpenTelemetry, see docs/monitoring.md.
type Telemetry struct {
	// Endpoint is the base URL of the collector, http or https, without a user, a query and a
	// fragment: traces go to /v1/traces below it, metrics to /v1/metrics. Unset: nothing is sent.
	Endpoint string `toml:"endpoint"`
	// Traces is whether each request is sent as a span.
	Traces bool `toml:"traces"`
	// Metrics is whether what /metrics shows is sent.
	Metrics bool `toml:"metrics"`
	// SamplePercent is how many of a hundred requests without a traceparent header are sent, 0 to
	// 100. A request with one is sent when that says so.
	SamplePercent int `toml:"sample_percent"`
	// Interval is how many seconds are between two reports of the metrics, at most 3600.
	Interval Seconds `toml:"interval"`
}

func defaultTelemetry() Telemetry {
	return Telemetry{Traces: true, Metrics: true, SamplePercent: 100, Interval: 60}
}

func (t Telemetry) check(p *problems) {
	u, err := url.Parse(t.Endpoint)
	switch {
	case t.Endpoint == "":
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.add("telemetry.endpoint", "must be the http or https URL of a collector, such as http://127.0.0.1:4318")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(u.Path, "/"):
		// The value is not shown: it may have a password.
		p.add("telemetry.endpoint", "must have no user, query, fragment or slash at its end; the variable OTEL_EXPORTER_OTLP_HEADERS has what authenticates the service")
	}
	if t.SamplePercent < 0 || t.SamplePercent > 100 {
		p.add("telemetry.sample_percent", "must be between 0 and 100 (got %d)", t.SamplePercent)
	}
	if t.Interval < 1 || t.Interval > 3600 {
		p.add("telemetry.interval", "must be between 1 and 3600 seconds (got %d)", int64(t.Interval))
	}
}
