package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"sandbox.internal/openapi/serve"
	"sandbox.internal/server/host"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/webhooks"
)

var (
	_ serve.Observer = (*Metrics)(nil)
	_ host.Observer  = (*Metrics)(nil)

	_ webhooks.Observer = (*Metrics)(nil)
)

// other stands for what has no name of its own.
const other = "other"

// RequestBegan implements serve.Observer.
func (m *Metrics) RequestBegan() { m.inFlight.Inc() }

// StreamOpened implements serve.Observer.
func (m *Metrics) StreamOpened() { m.streams.Inc() }

// RequestEnded implements serve.Observer.
func (m *Metrics) RequestEnded(e serve.Exchange) {
	operation := e.Operation
	if operation == "" {
		operation = other
	}
	m.inFlight.Dec()
	m.requests.WithLabelValues(operation, statusOf(e.Status)).Inc()
	if e.Stream {
		m.streams.Dec()
		m.streamDuration.WithLabelValues(operation).Observe(e.Took.Seconds())
		return
	}
	m.requestDuration.WithLabelValues(operation).Observe(e.Took.Seconds())
}

// statusOf keeps out what a program behind a proxy may invent. 499 is the log's word for a client
// that left.
func statusOf(status int) string {
	if http.StatusText(status) == "" && status != 499 {
		return other
	}
	return strconv.Itoa(status)
}

// StateChanged implements host.Observer.
func (m *Metrics) StateChanged(to lifecycle.State, reason lifecycle.Reason) {
	m.changes.WithLabelValues(string(to), reasonOf(reason)).Inc()
}

// reasonOf bounds the values of a label: on a cluster a reason may be any text that stops a
// sandbox.
func reasonOf(reason lifecycle.Reason) string {
	if len(reason) > 32 || strings.Trim(string(reason), "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return "OTHER"
	}
	return string(reason)
}

// StageDone implements host.Observer.
func (m *Metrics) StageDone(stage lifecycle.Stage, took time.Duration) {
	m.stages.WithLabelValues(string(stage)).Observe(took.Seconds())
}

// Provisioned implements host.Observer.
func (m *Metrics) Provisioned(took time.Duration) { m.provision.Observe(took.Seconds()) }

// Expired implements host.Observer.
func (m *Metrics) Expired(late time.Duration) { m.lateness.Observe(late.Seconds()) }

// AuditFailed counts a line that could not be written to the audit log.
func (m *Metrics) AuditFailed() { m.auditErrors.Inc() }

// The results of deliveries to webhooks.
const webhookDelivered, webhookFailed = "delivered", "failed"

// WebhookTried implements webhooks.Observer.
func (m *Metrics) WebhookTried(webhook string, delivered bool) {
	result := webhookFailed
	if delivered {
		result = webhookDelivered
	}
	m.webhooks.WithLabelValues(webhook, result).Inc()
}
