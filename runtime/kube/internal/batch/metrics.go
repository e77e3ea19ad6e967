package batch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// Metrics are what the controller counts of batches.
type Metrics struct {
	start    *prometheus.HistogramVec
	lateness prometheus.Histogram
	ended    *prometheus.CounterVec
}

// NewMetrics returns metrics that the registry shows.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		start: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sandbox_batch_start_seconds",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
			Help:    "From the creation of a BatchSandbox, which the API server records to the second, to all its sandboxes usable, by source.",
		}, []string{"source"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sandbox_batch_expiry_lateness_seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
			Help:    "How long after spec.expireTime the end of a BatchSandbox was on record.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_batch_ended_total",
			Help: "BatchSandboxes that have ended, by phase and reason.",
		}, []string{"phase", "reason"}),
	}
	registry.MustRegister(m.start, m.lateness, m.ended)
	return m
}

func (m *Metrics) started(b *v1alpha1.BatchSandbox, took time.Duration) {
	source := "template"
	if b.Spec.PoolRef != "" {
		source = "pool"
	}
	m.start.WithLabelValues(source).Observe(max(took, 0).Seconds())
}

func (m *Metrics) stopping(b *v1alpha1.BatchSandbox, now time.Time) {
	if b.Status.Reason == v1alpha1.ReasonExpired && b.Spec.ExpireTime != nil {
		m.lateness.Observe(max(now.Sub(b.Spec.ExpireTime.Time), 0).Seconds())
	}
}

func (m *Metrics) finished(status *v1alpha1.BatchSandboxStatus) {
	reason := status.Reason
	if !ownReason(reason) {
		reason = "OTHER" // any client may write the stop annotation, and labels must be few
	}
	m.ended.WithLabelValues(string(status.Phase), reason).Inc()
}

func ownReason(reason string) bool {
	switch reason {
	case v1alpha1.ReasonUserDelete, v1alpha1.ReasonExpired, v1alpha1.ReasonEntrypointExited,
		v1alpha1.ReasonOOMKilled,
		v1alpha1.ReasonImagePullError, v1alpha1.ReasonResourceLimit,
		v1alpha1.ReasonProvisionTimeout, v1alpha1.ReasonContainerError,
		v1alpha1.ReasonNetworkError,
		v1alpha1.ReasonRemovedExternally, v1alpha1.ReasonInvalidTemplate,
		v1alpha1.ReasonPoolNotFound:
		return true
	}
	return false
}
