package main

import (
	"math"
	"slices"
)

// direction says which values of a row are good.
type direction string

const (
	lower  direction = "lower"  // times and sizes
	higher direction = "higher" // rates
)

// sample is what one side of a row measured. An attempt that failed has no value but counts.
type sample struct {
	values   []float64
	attempts int
}

func (s *sample) add(value float64) {
	s.attempts++
	s.values = append(s.values, value)
}

func (s *sample) fail() { s.attempts++ }

// success is the share of attempts that succeeded, 0 to 1.
func (s sample) success() float64 {
	if s.attempts == 0 {
		return 0
	}
	return float64(len(s.values)) / float64(s.attempts)
}

// median is the middle value, or the mean of the two in the middle; NaN without values.
func (s sample) median() float64 {
	n := len(s.values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s.values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// p99 is the measured value that 99% of the values are at least as good as (nearest rank): the slow end of times, and
// the low end of rates. Of fewer than 100 values it is the worst. NaN without values.
func (s sample) p99(good direction) float64 {
	n := len(s.values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s.values))
	rank := int(math.Ceil(0.99 * float64(n)))
	if good == higher {
		return sorted[n-rank]
	}
	return sorted[rank-1]
}

// effective is the median with the success rate as a multiplier: a service that answers every second request counts as
// twice as slow. Never better than the median; NaN without values.
func (s sample) effective(good direction) float64 {
	if good == higher {
		return s.median() * s.success()
	}
	return s.median() / s.success()
}

// pair is one row's result: our side, and the floor's.
type pair struct{ ours, floor sample }

// ratio is our effective median over the floor's median.
func (p pair) ratio(good direction) float64 { return p.ours.effective(good) / p.floor.median() }

// difference is our effective median less the floor's median, in the row's unit.
func (p pair) difference(good direction) float64 { return p.ours.effective(good) - p.floor.median() }
