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

// flights are the pulls that go on. Callers with the same credentials who want the same image share one, which counts once.
type flights struct {
	mu      sync.Mutex
	running map[flightKey]*flight
}

// flightKey tells pulls apart as an engine does. It is compared and never shown.
type flightKey struct {
	ref  string
	auth engine.RegistryAuth
}

type flight struct {
	began   time.Time
	waiting int
	landed  bool
}

// board notes that somebody waits for a pull.
func (m *Metrics) board(key flightKey) *flight {
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

// land notes that somebody waits no longer: the first one with a result counts for all, or the last one who gives up.
func (m *Metrics) land(key flightKey, f *flight, err error) {
	m.flights.mu.Lock()
	defer m.flights.mu.Unlock()
	f.waiting--
	gaveUp := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if f.landed || gaveUp && f.waiting > 0 {
		return
	}
	f.landed = true
	delete(m.flights.running, key) // who comes now joins another pull
	m.pulling.Dec()
	switch {
	case err == nil:
		m.pulls.WithLabelValues(pullSucceeded).Inc()
		m.pullDuration.Observe(m.clock().Sub(f.began).Seconds())
	case gaveUp:
		m.pulls.WithLabelValues(pullGivenUp).Inc()
	default:
		m.pulls.WithLabelValues(pullFailed).Inc()
	}
}
