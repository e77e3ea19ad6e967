package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandbox.internal/runtime/engine"
)

// The results of pulls.
const (
	pullSucceeded = "success"
	pullFailed    = "failure"
	pullGivenUp   = "canceled"
)

// flights are the running pulls. Requests of one caller with the same credentials and image share
// one, which counts once.
type flights struct {
	mu      sync.Mutex
	running map[flightKey]*flight
}

// flightKey identifies a pull as an engine does. It is compared and never shown.
type flightKey struct {
	ref    string
	auth   engine.RegistryAuth
	caller engine.Caller
}

type flight struct {
	began   time.Time
	waiting int
	done    bool
}

// join notes that a caller waits for a pull.
func (m *Metrics) join(key flightKey) *flight {
	m.flights.mu.Lock()
	defer m.flights.mu.Unlock()
	f := m.flights.running[key]
	if f == nil {
		f = &flight{began: m.clock()}
		m.flights.running[key] = f
		m.pulling.Inc()
	}
	f.waiting++
	return f
}

// leave notes that a caller waits no longer: the first result counts for all, or the last cancelled
// caller.
func (m *Metrics) leave(key flightKey, f *flight, err error) {
	m.flights.mu.Lock()
	defer m.flights.mu.Unlock()
	f.waiting--
	canceled := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if f.done || canceled && f.waiting > 0 {
		return
	}
	f.done = true
	delete(m.flights.running, key) // a later caller joins another pull
	m.pulling.Dec()
	switch {
	case err == nil:
		m.pulls.WithLabelValues(pullSucceeded).Inc()
		m.pullDuration.Observe(m.clock().Sub(f.began).Seconds())
	case canceled:
		m.pulls.WithLabelValues(pullGivenUp).Inc()
	default:
		m.pulls.WithLabelValues(pullFailed).Inc()
	}
}
