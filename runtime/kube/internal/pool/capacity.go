package pool

import (
	"k8s.io/apimachinery/pkg/util/intstr"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// limits are the spec of a pool as numbers.
type limits struct {
	bufferMin, bufferMax int
	poolMin, poolMax     int
	starting             int // how many may be on their way at once
	missing              intstr.IntOrString
}

// podCounts counts the pods of a pool. Each is counted once.
type podCounts struct {
	ready     int // wait, and can be given
	stale     int // of the ready ones: from an older template
	starting  int // on their way
	recycling int // were used, and come back
	allocated int // belong to batches
	leaving   int // are being deleted
	want      int // how many pods batches lack
}

// total is how many pods exist.
func (c podCounts) total() int { return c.ready + c.starting + c.recycling + c.allocated + c.leaving }

// decision is what to do next.
type decision struct {
	make    int // this many new ones
	remove  int // this many of those that wait or are on their way, because they are too many
	replace int // this many stale ones, because an update goes on
}

func limitsOf(spec v1alpha1.PoolSpec) limits {
	c := spec.CapacitySpec
	l := limits{
		bufferMin: int(c.BufferMin), bufferMax: int(c.BufferMax), poolMin: int(c.PoolMin),
		poolMax: int(c.PoolMax),
		missing: intstr.FromString("25%"),
	}
	if m := spec.UpdateStrategy.MaxUnavailable; m != nil {
		l.missing = *m
	}
	starting := intstr.FromString("100%")
	if m := spec.ScaleStrategy.MaxUnavailable; m != nil {
		starting = *m
	}
	l.starting = share(starting, l.poolMax)
	return l
}

// buffer is how many pods are to be ready: bufferMin, as far as poolMax allows.
func (l limits) buffer(c podCounts) int { return min(l.bufferMin, max(l.poolMax-c.allocated, 0)) }

// share is a number or a percentage of something, rounded up, and at least 1, because with 0
// nothing would ever happen.
func share(value intstr.IntOrString, of int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&value, of, true)
	if err != nil {
		n = 0
	}
	return max(n, 1)
}

// decide says what a pool does next. What batches lack counts on top of the buffer. poolMax goes
// before poolMin, and poolMin before bufferMax.
func decide(l limits, c podCounts) decision {
	free := max(l.poolMax-c.allocated, 0) // for pods that wait
	high := min(max(l.bufferMax+c.want, l.poolMin-c.allocated), free)
	low := min(max(l.bufferMin+c.want, l.poolMin-c.allocated), high)
	if c.stale > 0 {
		low = high // an update makes up for what it takes away at once
	}
	waiting := c.ready + c.starting + c.recycling

	if surplus := waiting - high; surplus > 0 {
		return decision{remove: min(surplus, c.ready+c.starting)}
	}
	var d decision
	if waiting < low {
		d.make = max(min(high-waiting, l.poolMax-c.total(), l.starting-c.starting), 0)
	}
	if c.stale > 0 {
		absent := high - c.ready
		d.replace = min(max(share(l.missing, high)-absent, 0), c.stale)
	}
	return d
}
