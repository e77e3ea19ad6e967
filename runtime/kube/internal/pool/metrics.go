package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// The outcomes of recycling.
const (
	recycledByDelete  = "deleted"
	recycledByRestart = "restarted"
	recycledByFailure = "failed" // the restart failed, so that the pod was deleted
)

type poolMetrics struct {
	allocations *prometheus.CounterVec
	pods        *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	recycles    *prometheus.CounterVec
	size        *prometheus.GaugeVec
	missing     *prometheus.GaugeVec
}

func newMetrics(registry prometheus.Registerer) (*poolMetrics, error) {
	pool := []string{"namespace", "pool"}
	m := &poolMetrics{
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_pool_allocations_total",
			Help: "Writes that gave pods of a pool to a batch.",
		}, pool),
		pods: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_pool_allocated_pods_total",
			Help: "Pods of a pool that were given to batches.",
		}, pool),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sandbox_pool_allocation_duration_seconds",
			Help:    "Time from asking for pods that are ready to the answer of the API server.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, pool),
		recycles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sandbox_pool_recycles_total",
			Help: "Pods that were used, by what became of them.",
		}, append([]string{"outcome"}, pool...)),
		size: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sandbox_pool_pods", Help: "Pods of a pool, by state.",
		}, append([]string{"state"}, pool...)),
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sandbox_pool_missing_pods",
			Help: "How many pods fewer are ready than bufferMin, as far as poolMax allows, asks for.",
		}, pool),
	}
	for _, c := range []prometheus.Collector{m.allocations, m.pods, m.latency, m.recycles, m.size,
		m.missing} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *poolMetrics) allocated(batch *v1alpha1.BatchSandbox, pods int, took time.Duration) {
	m.allocations.WithLabelValues(batch.Namespace, batch.Spec.PoolRef).Inc()
	m.pods.WithLabelValues(batch.Namespace, batch.Spec.PoolRef).Add(float64(pods))
	m.latency.WithLabelValues(batch.Namespace, batch.Spec.PoolRef).Observe(took.Seconds())
}

func (m *poolMetrics) recycled(namespace, pool, outcome string) {
	m.recycles.WithLabelValues(outcome, namespace, pool).Inc()
}

func (m *poolMetrics) counted(pool types.NamespacedName, l limits, c podCounts) {
	m.missing.WithLabelValues(pool.Namespace, pool.Name).Set(float64(max(l.buffer(c)-c.ready, 0)))
	for state, n := range map[string]int{
		"available": c.ready, "starting": c.starting, "recycling": c.recycling,
		"allocated": c.allocated, "leaving": c.leaving,
	} {
		m.size.WithLabelValues(state, pool.Namespace, pool.Name).Set(float64(n))
	}
}

func (m *poolMetrics) forget(pool types.NamespacedName) {
	labels := prometheus.Labels{"namespace": pool.Namespace, "pool": pool.Name}
	m.size.DeletePartialMatch(labels)
	m.missing.DeletePartialMatch(labels)
}
