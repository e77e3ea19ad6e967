package main

import (
	"math"
	"math/rand/v2"
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
	// requests are the single requests, in milliseconds, of a row whose values are the rates of
	// rounds of many; else it is empty.
	requests []float64
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

// p99 is the value that 99% of the single requests are at least as good as, in milliseconds, or, of
// a row whose values are single requests themselves, of the values.
func (s sample) p99(good direction) float64 {
	if len(s.requests) > 0 {
		return quantile(s.requests, 0.99, lower)
	}
	return quantile(s.values, 0.99, good)
}

// quantile is the measured value that a share of the values is at least as good as (nearest rank):
// the slow end of times, and the low end of rates. The 0.99 quantile of fewer than 100 values is
// the worst. NaN without values.
func quantile(values []float64, share float64, good direction) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := max(1, int(math.Ceil(share*float64(n))))
	if good == higher {
		return sorted[n-rank]
	}
	return sorted[rank-1]
}

// effective is the median with the success rate as a multiplier: a service that answers every
// second request counts as twice as slow. Never better than the median; NaN without values.
func (s sample) effective(good direction) float64 {
	if good == higher {
		return s.median() * s.success()
	}
	return s.median() / s.success()
}

// pair is one row's result: our side, the floor's, and that of a peer where there is one: another
// program that does the same for its users, and not the least that could do it.
type pair struct{ ours, floor, peer sample }

// join adds the figures of another pair.
func (p *pair) join(other pair) {
	for _, side := range []struct{ to, from *sample }{{&p.ours, &other.ours},
		{&p.floor, &other.floor}} {
		side.to.values = append(side.to.values, side.from.values...)
		side.to.attempts += side.from.attempts
	}
}

// ratio is our effective median over the floor's median.
func (p pair) ratio(good direction) float64 { return p.ours.effective(good) / p.floor.median() }

// difference is our effective median less the floor's median, in the row's unit.
func (p pair) difference(
	good direction) float64 {
	return p.ours.effective(good) - p.floor.median()
}

// resamples is how often a run is drawn again from itself to see what its figures are worth.
const resamples = 200

// interval returns what 95% of the resampled runs (bootstrap) give for the value that a target
// compares: the noise of this run. Rounds of both sides are drawn together where there are as many
// of both, because they were measured in turns.
func (p pair) interval(t target, good direction) (low, high float64) {
	random := rand.New(rand.NewPCG(1, 2)) // the same picture of the same figures every time
	values := make([]float64, resamples)
	for i := range values {
		values[i] = t.value(p.drawn(random), good)
	}
	return quantile(values, 0.025, lower), quantile(values, 0.975, lower)
}

func (p pair) drawn(random *rand.Rand) pair {
	drawn := pair{ours: p.ours, floor: p.floor}
	drawn.ours.values, drawn.floor.values = make([]float64, len(p.ours.values)),
		make([]float64, len(p.floor.values))
	for i := range drawn.ours.values {
		at := random.IntN(len(p.ours.values))
		drawn.ours.values[i] = p.ours.values[at]
		if len(p.ours.values) == len(p.floor.values) {
			drawn.floor.values[i] = p.floor.values[at]
		}
	}
	if len(p.ours.values) != len(p.floor.values) {
		for i := range drawn.floor.values {
			drawn.floor.values[i] = p.floor.values[random.IntN(len(p.floor.values))]
		}
	}
	if n := len(p.ours.requests); n > 0 {
		drawn.ours.requests = make([]float64, n)
		for i := range drawn.ours.requests {
			drawn.ours.requests[i] = p.ours.requests[random.IntN(n)]
		}
	}
	return drawn
}

// thinned returns what a file keeps of many figures: all of them in their order up to most, else as
// many of the sorted ones, at equal distances.
func thinned(values []float64, most int) []float64 {
	if len(values) <= most {
		return values
	}
	sorted := slices.Sorted(slices.Values(values))
	kept := make([]float64, most)
	for i := range kept {
		kept[i] = sorted[i*(len(sorted)-1)/(most-1)]
	}
	return kept
}
