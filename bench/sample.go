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
	// bursts are the rounds of a row whose rounds each make many values at once, in their order;
	// else it is empty, and each value is a round.
	bursts []burst
}

// burst is a round of many values, which are not independent of one another.
type burst struct {
	values   []float64
	attempts int
}

// add adds the value of an attempt.
func (s *sample) add(value float64) {
	s.attempts++
	s.values = append(s.values, value)
}

// timed adds how long do takes, in milliseconds.
func (s *sample) timed(do func() error) error {
	took, err := timed(do)
	if err == nil {
		s.add(took)
	}
	return err
}

// fail adds an attempt without a value.
func (s *sample) fail() { s.attempts++ }

// addBurst adds the values of one round, which is drawn as a whole.
func (s *sample) addBurst(b burst) {
	s.values = append(s.values, b.values...)
	s.attempts += b.attempts
	s.bursts = append(s.bursts, b)
}

// burst is all of the sample as one round.
func (s sample) burst() burst { return burst{s.values, s.attempts} }

// inOne returns the sample as one that was measured in one round.
func (s sample) inOne() sample {
	s.bursts = []burst{s.burst()}
	return s
}

// rounds is how many independent figures the sample has.
func (s sample) rounds() int {
	if len(s.bursts) > 0 {
		return len(s.bursts)
	}
	return len(s.values)
}

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

// tail is the p99 of all attempts, in the unit of the values: one that failed has never ended. It
// is what a target of the p99 compares. NaN without attempts.
func (s sample) tail(good direction) float64 {
	never := math.Inf(1)
	if good == higher {
		never = 0
	}
	failed := slices.Repeat([]float64{never}, max(0, s.attempts-len(s.values)))
	return quantile(slices.Concat(s.values, failed), 0.99, good)
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
func (p pair) difference(good direction) float64 {
	return p.ours.effective(good) - p.floor.median()
}

// resamples is how often a run is drawn again from itself to see what its figures are worth.
const resamples = 200

// leastRounds is how many rounds can show how far they differ by chance.
const leastRounds = 3

// interval returns what 95% of the resampled runs (bootstrap) give for the value that a target
// compares: the noise of this run; NaN where a side has fewer than leastRounds rounds. Rounds of
// both sides are drawn together where there are as many of both, because they were measured in
// turns.
func (p pair) interval(t target, good direction) (low, high float64) {
	if min(p.ours.rounds(), p.floor.rounds()) < leastRounds {
		return math.NaN(), math.NaN()
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same picture of the same figures every time
	values := make([]float64, resamples)
	for i := range values {
		values[i] = t.value(p.drawn(random), good)
	}
	return quantile(values, 0.025, lower), quantile(values, 0.975, lower)
}

func (p pair) drawn(random *rand.Rand) pair {
	at := draw(p.ours.rounds(), random)
	drawn := pair{ours: p.ours.of(at)}
	if p.floor.rounds() != len(at) {
		at = draw(p.floor.rounds(), random)
	}
	drawn.floor = p.floor.of(at)
	return drawn
}

// draw returns as many of the numbers 0 to count-1, any of them more than once.
func draw(count int, random *rand.Rand) []int {
	drawn := make([]int, count)
	for i := range drawn {
		drawn[i] = random.IntN(count)
	}
	return drawn
}

// of returns the sample of these rounds. Attempts that failed outside of bursts remain.
func (s sample) of(rounds []int) sample {
	if len(s.bursts) == 0 {
		drawn := sample{attempts: s.attempts, values: make([]float64, len(rounds))}
		for i, at := range rounds {
			drawn.values[i] = s.values[at]
		}
		return drawn
	}
	var drawn sample
	for _, at := range rounds {
		drawn.addBurst(s.bursts[at])
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
